"""Short names of devices, and whether an op got what it asked for."""

from __future__ import annotations

import functools

import tensorflow as tf


@functools.cache
def short(device: str) -> str:
    """`/job:localhost/…/device:GPU:0` is `GPU:0`; of another task it is `worker:1/GPU:0`."""
    if not device:
        return ""
    spec = tf.DeviceSpec.from_string(device)
    parts = []
    if spec.job not in (None, "localhost"):
        parts.append(spec.job if spec.task is None else f"{spec.job}:{spec.task}")
    if spec.device_type is not None:
        index = "" if spec.device_index is None else f":{spec.device_index}"
        parts.append(f"{spec.device_type}{index}")
    return "/".join(parts)


@functools.cache
def satisfies(got: str, asked: str) -> bool:
    """Whether everything that `asked` states is so in `got`."""
    wanted, found = tf.DeviceSpec.from_string(asked), tf.DeviceSpec.from_string(got)
    pairs = [
        (wanted.device_type, found.device_type),
        (wanted.device_index, found.device_index),
        (wanted.task, found.task),
        (wanted.job, found.job),
    ]
    return all(want is None or want == have for want, have in pairs)


def kind_of(device: str) -> str:
    """`"GPU"`, `"CPU"`, or `""` if the name leaves it open."""
    return str(tf.DeviceSpec.from_string(device).device_type or "")


def is_there(asked: str) -> bool:
    """Whether this process can reach a device that is like the one asked for."""
    return any(satisfies(each.name, asked) for each in tf.config.list_logical_devices())
