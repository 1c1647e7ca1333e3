"""Which kernel runs an op on a kind of device, according to TensorFlow's kernel registry."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from keras_mgpu.internals.tf_kernels import registered_kernels

ANY_DEVICE = "DEFAULT"  # Kernels that serve every kind of device without a kernel of its own.
Setting = tuple[str, Any]  # A kind of value, such as `"type"` or `"s"` for a string, and the value.


@dataclass(frozen=True, eq=False)
class Kernel:
    """A kernel that is registered for an op.

    Args:
        device_type: The kind of device that it runs on, or `ANY_DEVICE`.
        allowed: Types and other settings of a node that it runs, by attribute.
        on_host: Inputs and outputs that are in the host's memory, whatever the device.
    """

    device_type: str
    allowed: Mapping[str, frozenset[Setting]]
    on_host: frozenset[str]

    def runs(self, settings: Mapping[str, frozenset[Setting]]) -> bool:
        """Whether it is registered for a node with these types and settings."""
        return all(settings.get(name, allowed) <= allowed for name, allowed in self.allowed.items())


def kernel_for(node: Any, device_type: str) -> Kernel | None:
    """The kernel that TensorFlow runs a node with on a kind of device; `None` if it has none."""
    names = _limited(node.op)
    settings = tuple((name, _settings(node.attr[name])) for name in names if name in node.attr)
    return _find_kernel(node.op, device_type, settings)


def can_run(node: Any, device_type: str) -> bool:
    """Whether a kernel exists for a node, with its types, on a kind of device.

    The CPU runs everything. Ops without any kernel, such as function calls, can be anywhere.
    """
    is_anywhere = device_type == "CPU" or not _kernels(node.op)
    return is_anywhere or kernel_for(node, device_type) is not None


def missing_kernel(node: Any, device_type: str) -> str:
    """Names the kernel that a node lacks on a kind of device; `""` if it exists."""
    if can_run(node, device_type):
        return ""
    others = [each for each in _kernels(node.op) if each.device_type in (device_type, ANY_DEVICE)]
    names = sorted({name for each in others for name in each.allowed} & set(node.attr))
    found = [_text(each) for name in names for each in sorted(_settings(node.attr[name]))]
    return f"no {device_type} kernel for {node.op}" + (
        f" of {', '.join(dict.fromkeys(found))}" if found else ""
    )


@functools.cache
def _find_kernel(
    op: str, device_type: str, settings: tuple[tuple[str, frozenset[Setting]], ...]
) -> Kernel | None:
    for kind in (device_type, ANY_DEVICE):
        for kernel in _kernels(op):
            if kernel.device_type == kind and kernel.runs(dict(settings)):
                return kernel
    return None


@functools.cache
def _kernels(op: str) -> tuple[Kernel, ...]:
    """The kernels of an op, without those that only nodes with a label ask for."""
    return tuple(
        Kernel(
            each.device_type,
            {limit.name: _settings(limit.allowed_values) for limit in each.constraint},
            frozenset(each.host_memory_arg),
        )
        for each in registered_kernels().get(op, ())
        if not each.label
    )


@functools.cache
def _limited(op: str) -> tuple[str, ...]:
    """The attributes of an op that some of its kernels allow only some settings of."""
    return tuple(dict.fromkeys(name for kernel in _kernels(op) for name in kernel.allowed))


def _settings(attribute: Any) -> frozenset[Setting]:
    """What an attribute is set to, a single value or a list."""
    kind = attribute.WhichOneof("value")
    if kind == "list":
        lists = [(field.name, values) for field, values in attribute.list.ListFields()]
        return frozenset((name, value) for name, values in lists for value in values)
    return frozenset([(kind, getattr(attribute, kind))] if kind else [])


def _text(setting: Setting) -> str:
    kind, value = setting
    if kind == "type":
        return str(tf.as_dtype(value).name)
    return value.decode() if kind == "s" else str(value)
