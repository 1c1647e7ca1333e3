"""Which kinds of devices can run an op, according to TensorFlow's kernel registry."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from keras_mgpu.internals.tf_kernels import registered_kernels


def can_run(node: Any, device_type: str) -> bool:
    """Whether a kernel exists for a node, with its types, on a kind of device.

    The CPU runs everything. Ops without any kernel, such as function calls, can be anywhere.
    """
    found = () if device_type == "CPU" else registered_kernels().get(node.op, ())
    return not found or any(
        kernel.device_type == device_type and _allows(kernel, node) for kernel in found
    )


def missing_kernel(node: Any, device_type: str) -> str:
    """Names the kernel that a node lacks on a kind of device; `""` if it exists."""
    if can_run(node, device_type):
        return ""
    if not any(kernel.device_type == device_type for kernel in registered_kernels()[node.op]):
        return f"no {device_type} kernel for {node.op}"
    types = [tf.as_dtype(value.type).name for _, value in sorted(node.attr.items()) if value.type]
    return f"no {device_type} kernel for {node.op} of {', '.join(dict.fromkeys(types))}"


def _allows(kernel: Any, node: Any) -> bool:
    """Whether a kernel is registered for the types of a node."""
    for constraint in kernel.constraint:
        value = node.attr.get(constraint.name)
        types = set(value.list.type) or {value.type} if value is not None else set()
        if types and not types <= set(constraint.allowed_values.list.type):
            return False
    return True
