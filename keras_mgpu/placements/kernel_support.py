"""What TensorFlow's kernel registry knows: which kinds of devices can run an op."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from keras_mgpu.internals.tf_kernels import registered_kernels


def can_run(node: Any, device_type: str) -> bool:
    """Whether there is a kernel for a node, with its types, on a kind of device.

    The CPU runs everything, and what no kernel does, such as a call of a function, can be anywhere.
    """
    found = () if device_type == "CPU" else registered_kernels().get(node.op, ())
    return not found or any(
        kernel.device_type == device_type and _allows(kernel, node) for kernel in found
    )


def missing_kernel(node: Any, device_type: str) -> str:
    """Says that there is no kernel for a node on a kind of device; `""` if there is one."""
    if can_run(node, device_type):
        return ""
    if not any(kernel.device_type == device_type for kernel in registered_kernels()[node.op]):
        return f"no {device_type} kernel for {node.op}"
    types = [tf.as_dtype(value.type).name for _, value in sorted(node.attr.items()) if value.type]
    return f"no {device_type} kernel for {node.op} of {', '.join(dict.fromkeys(types))}"


def _allows(kernel: Any, node: Any) -> bool:
    """Whether the types of a node are among those that a kernel is for."""
    for constraint in kernel.constraint:
        value = node.attr.get(constraint.name)
        types = set(value.list.type) or {value.type} if value is not None else set()
        if types and not types <= set(constraint.allowed_values.list.type):
            return False
    return True
