"""Device names: what is there, what a user's string means, and logical devices.

One place asks TensorFlow what exists, so that every "no such device" error reads the same.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass

import tensorflow as tf

from keras_mgpu.internals.tf_devices import local_devices


@dataclass(frozen=True)
class DeviceInfo:
    """What `keras-mgpu devices` shows of one device."""

    name: str
    kind: str
    description: str
    memory_bytes: int | None


def available() -> list[str]:
    """Short names of every device TensorFlow can place an op on, such as `"/GPU:0"`.

    Devices of other processes keep their whole name.
    """
    return [_short(device.name) for device in tf.config.list_logical_devices()]


def gpus() -> list[str]:
    """Short names of the visible GPUs."""
    return [_short(device.name) for device in tf.config.list_logical_devices("GPU")]


def resolve(devices: Sequence[str]) -> tuple[str, ...]:
    """Returns the devices in their short form, or says which of them are not there.

    Args:
        devices: Device strings in any of TensorFlow's spellings
            (`"/GPU:0"`, `"gpu:0"`, `"/device:GPU:0"`, or a whole name with job and task).

    Raises:
        TypeError: If `devices` is not a sequence of strings.
        ValueError: If a string is no device name, or names a device that is not there.
    """
    if isinstance(devices, str) or not isinstance(devices, Sequence):
        raise TypeError(
            "`devices` must be a list of device strings, one a stage, such as "
            f'["/GPU:0", "/GPU:1"]. Received: devices={devices!r}'
        )
    names = tuple(normalize(device) for device in devices)
    there = available()
    missing = [name for name in names if name not in there]
    if missing:
        raise ValueError(
            f"No such device: {', '.join(dict.fromkeys(missing))}. "
            f"These are there: {', '.join(there)}. "
            "On a machine without enough GPUs, logical CPU devices can stand in: call "
            "`keras_mgpu.logical_devices(n)` before anything else uses TensorFlow. "
            f"Received: devices={list(devices)}"
        )
    return names


def normalize(device: str) -> str:
    """Returns the short form of one device string; says so if it is none."""
    if not isinstance(device, str):
        raise TypeError(
            'A device must be a string such as "/GPU:0". '
            f"Received: device={device!r} (of type {type(device).__name__})"
        )
    try:
        spec = tf.DeviceSpec.from_string(device)
    except ValueError:
        spec = tf.DeviceSpec()
    if spec.device_type is None:
        raise ValueError(
            f'A device must be named like "/GPU:0" or "/CPU:0". Received: device={device!r}'
        )
    if spec.device_index is None:
        spec = spec.replace(device_index=0)
    return _short(spec.to_string())


def _short(name: str) -> str:
    """`/device:GPU:0` to `/GPU:0`; names with a job stay whole."""
    spec = tf.DeviceSpec.from_string(name)
    if spec.job in (None, "localhost"):
        return f"/{spec.device_type}:{spec.device_index}"
    return spec.to_string()


def pick_devices(num_devices: int) -> list[str]:
    """Names of `num_devices` GPUs; where there are not as many, of logical CPU devices.

    So the same program runs on a laptop and on a machine with GPUs. Call it first, like
    `logical_devices`.

    Example:

    ```python
    split = keras_mgpu.PipelineSplit(model, devices=keras_mgpu.pick_devices(2))
    ```

    Args:
        num_devices: How many.
    """
    if len(tf.config.list_physical_devices("GPU")) >= num_devices >= 1:
        return [f"/GPU:{index}" for index in range(num_devices)]
    return logical_devices(num_devices)


def logical_devices(num_devices: int) -> list[str]:
    """Makes `num_devices` logical CPU devices and returns their names.

    They let a pipeline run, and be tested, on a machine without GPUs. Call it first:
    TensorFlow cannot change its devices once it has used them.

    Example:

    ```python
    devices = keras_mgpu.logical_devices(2)  # ["/CPU:0", "/CPU:1"]
    split = keras_mgpu.PipelineSplit(model, devices=devices)
    ```

    Args:
        num_devices: How many devices to make. Asking again for as many or fewer returns those.

    Returns:
        A list of `num_devices` device names.
    """
    if isinstance(num_devices, bool) or not isinstance(num_devices, int):
        raise TypeError(
            "`num_devices` must be an integer. "
            f"Received: num_devices={num_devices!r} (of type {type(num_devices).__name__})"
        )
    if num_devices < 1:
        raise ValueError(f"`num_devices` must be at least 1. Received: num_devices={num_devices}")
    cpu = tf.config.list_physical_devices("CPU")[0]
    configured = tf.config.get_logical_device_configuration(cpu)
    if configured is None or len(configured) < num_devices:
        try:
            tf.config.set_logical_device_configuration(
                cpu, [tf.config.LogicalDeviceConfiguration()] * num_devices
            )
        except RuntimeError as error:
            there = [name for name in available() if "CPU" in name]
            if len(there) >= num_devices:
                return there[:num_devices]
            raise RuntimeError(
                "TensorFlow has already started with "
                f"{len(there)} CPU device(s), and cannot make more now. Call "
                "`keras_mgpu.logical_devices(n)` at the top of the program, before any model "
                f"or tensor is made. Received: num_devices={num_devices}"
            ) from error
    return [f"/CPU:{index}" for index in range(num_devices)]


def describe() -> list[DeviceInfo]:
    """What is there, with memory where TensorFlow knows it."""
    details = [
        tf.config.experimental.get_device_details(gpu)
        for gpu in tf.config.list_physical_devices("GPU")
    ]
    found = []
    for device in tf.config.list_logical_devices():
        name = _short(device.name)
        index = tf.DeviceSpec.from_string(device.name).device_index
        is_gpu = device.device_type == "GPU"
        card = details[index].get("device_name", "") if is_gpu and index < len(details) else ""
        memory = _memory_bytes(device.name)
        found.append(DeviceInfo(name, device.device_type, card, memory))
    return found


def _memory_bytes(name: str) -> int | None:
    """The memory TensorFlow may use on a GPU; it states nothing useful for a CPU."""

    if "GPU" not in name:
        return None
    for device in local_devices():
        if device.name == name:
            return int(device.memory_limit)
    return None


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


_BUS = re.compile(r"pci bus id: ([0-9A-Fa-f:.]+)")


@functools.cache
def buses_of_gpus() -> dict[str, str]:
    """The place on the bus of each GPU of this process, by TensorFlow's whole name, in order."""

    gpus = tf.config.list_logical_devices("GPU")
    if not gpus:
        return {}
    found = {}
    descriptions = {
        tf.DeviceSpec.from_string(each.name).device_index: each.physical_device_desc
        for each in local_devices()
        if each.device_type == "GPU"
    }
    for gpu in gpus:
        index = tf.DeviceSpec.from_string(gpu.name).device_index
        match = _BUS.search(descriptions.get(index, ""))
        if match:
            found[gpu.name] = match[1]
    return found
