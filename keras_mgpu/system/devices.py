"""The devices of this process: their names, which are available, and logical CPU devices.

Only this file asks TensorFlow which devices exist, so that all errors about devices read the same.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass

import tensorflow as tf

from keras_mgpu.internals.tf_devices import has_started, local_devices
from keras_mgpu.system.gpu_setup import prepare_gpus

# Names.


@functools.cache
def short(device: str) -> str:
    """Returns the shortest readable name of a device, for tables and messages.

    Args:
        device: Any device name of TensorFlow, such as `"/job:localhost/…/device:GPU:0"`.

    Returns:
        A string such as `"GPU:0"`, or `"worker:1/GPU:0"` for a device of another task.
    """
    if not device:
        return ""
    spec = tf.DeviceSpec.from_string(device)
    parts = []
    if not _is_local(spec):
        parts.append(spec.job if spec.task is None else f"{spec.job}:{spec.task}")
    if spec.device_type is not None:
        index = "" if spec.device_index is None else f":{spec.device_index}"
        parts.append(f"{spec.device_type}{index}")
    return "/".join(parts)


def normalize(device: str) -> str:
    """Returns a device string in the form in which `tf.device` takes it.

    Args:
        device: A device string in any of TensorFlow's spellings.

    Returns:
        A string such as `"/GPU:0"`. Devices of other processes keep their full name.
    """
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
            f'A device must have a name such as "/GPU:0" or "/CPU:0". Received: device={device!r}'
        )
    if spec.device_index is None:
        spec = spec.replace(device_index=0)
    name = str(spec.to_string())
    return f"/{short(name)}" if _is_local(spec) else name


@functools.cache
def kind_of(device: str) -> str:
    """Returns `"GPU"` or `"CPU"`, or `""` if the name does not specify it."""
    return str(tf.DeviceSpec.from_string(device).device_type or "")


@functools.cache
def satisfies(got: str, asked: str) -> bool:
    """Whether the device `got` matches everything that `asked` specifies."""
    wanted, found = tf.DeviceSpec.from_string(asked), tf.DeviceSpec.from_string(got)
    if found.job is None:
        found = found.replace(job="localhost", task=0)  # TensorFlow leaves it out.
    pairs = [
        (wanted.device_type, found.device_type),
        (wanted.device_index, found.device_index),
        (wanted.task, found.task),
        (wanted.job, found.job),
    ]
    return all(want is None or want == have for want, have in pairs)


@functools.cache
def memory_of(device: str, on_host: bool) -> str:
    """The device whose memory a tensor of an op is in.

    Args:
        device: The device of the op.
        on_host: Whether the op wants the tensor in the host's memory, as some do on a GPU.

    Returns:
        `device`, or the first CPU of its process.
    """
    if not on_host or kind_of(device) == "CPU":
        return device
    host = tf.DeviceSpec.from_string(device).replace(device_type="CPU", device_index=0)
    return str(host.to_string())


def _is_local(spec: tf.DeviceSpec) -> bool:
    return spec.job in (None, "localhost")


# Available devices.


def available() -> list[str]:
    """Returns the names of all devices that ops can be placed on, such as `"/GPU:0"`."""
    return [normalize(device.name) for device in tf.config.list_logical_devices()]


def gpus() -> list[str]:
    """Returns the names of all visible GPUs."""
    return [normalize(device.name) for device in tf.config.list_logical_devices("GPU")]


def is_there(asked: str) -> bool:
    """Whether a device that satisfies `asked` is available."""
    return any(satisfies(each.name, asked) for each in tf.config.list_logical_devices())


def resolve(devices: Sequence[str]) -> tuple[str, ...]:
    """Returns the normalized names of devices, after checking that they are available.

    Args:
        devices: List of device strings in any of TensorFlow's spellings (`"/GPU:0"`, `"gpu:0"`,
            `"/device:GPU:0"`, or a full name with job and task).

    Raises:
        TypeError: If `devices` is not a sequence of strings.
        ValueError: If a string is not a device name, or if the device is not available.
    """
    if isinstance(devices, str) or not isinstance(devices, Sequence):
        raise TypeError(
            "`devices` must be a list of device strings, one per stage, such as "
            f'["/GPU:0", "/GPU:1"]. Received: devices={devices!r}'
        )
    names = tuple(normalize(device) for device in devices)
    found = available()
    missing = [name for name in names if name not in found]
    if missing:
        raise ValueError(
            f"No such device: {', '.join(dict.fromkeys(missing))}. "
            f"Available devices: {', '.join(found)}. "
            "On a machine without enough GPUs, use logical CPU devices: call "
            "`keras_mgpu.logical_devices(n)` before anything else uses TensorFlow. "
            f"Received: devices={list(devices)}"
        )
    return names


# Logical devices.


def pick_devices(num_devices: int) -> list[str]:
    """Returns the names of GPUs, or of logical CPU devices if there are not enough GPUs.

    The same program then runs on a laptop and on a machine with GPUs. Like `logical_devices`, it
    must be called before anything else uses TensorFlow. GPUs are then prepared with `prepare_gpus`.

    Example:

    ```python
    split = keras_mgpu.PipelineSplit(model, devices=keras_mgpu.pick_devices(2))
    ```

    Args:
        num_devices: Integer, the number of devices.

    Returns:
        A list of `num_devices` device names.
    """
    if len(tf.config.list_physical_devices("GPU")) >= num_devices >= 1:
        if not has_started():
            prepare_gpus()
        return [f"/GPU:{index}" for index in range(num_devices)]
    return logical_devices(num_devices)


def logical_devices(num_devices: int) -> list[str]:
    """Creates logical CPU devices and returns their names.

    With logical devices, a pipeline can be run and tested on a machine without GPUs. Call this
    before anything else uses TensorFlow, which cannot change its devices later.

    Example:

    ```python
    devices = keras_mgpu.logical_devices(2)  # ["/CPU:0", "/CPU:1"]
    split = keras_mgpu.PipelineSplit(model, devices=devices)
    ```

    Args:
        num_devices: Integer, the number of devices. Calling the function again for the same number
            or fewer returns the existing devices.

    Returns:
        A list of `num_devices` device names.
    """
    _check_num_devices(num_devices)
    cpu = tf.config.list_physical_devices("CPU")[0]
    configured = tf.config.get_logical_device_configuration(cpu)
    if configured is None or len(configured) < num_devices:
        try:
            tf.config.set_logical_device_configuration(
                cpu, [tf.config.LogicalDeviceConfiguration()] * num_devices
            )
        except RuntimeError as error:
            return _existing_cpus(num_devices, error)
    return [f"/CPU:{index}" for index in range(num_devices)]


def _check_num_devices(num_devices: int) -> None:
    if isinstance(num_devices, bool) or not isinstance(num_devices, int):
        raise TypeError(
            "`num_devices` must be an integer. "
            f"Received: num_devices={num_devices!r} (of type {type(num_devices).__name__})"
        )
    if num_devices < 1:
        raise ValueError(f"`num_devices` must be at least 1. Received: num_devices={num_devices}")


def _existing_cpus(num_devices: int, error: RuntimeError) -> list[str]:
    """Returns CPU devices of a TensorFlow that has started already, if it has enough of them."""
    found = [name for name in available() if "CPU" in name]
    if len(found) < num_devices:
        raise RuntimeError(
            f"TensorFlow has already started with {len(found)} CPU device(s) and cannot add more. "
            "Call `keras_mgpu.logical_devices(n)` at the top of the program, before any model or "
            f"tensor is created. Received: num_devices={num_devices}"
        ) from error
    return found[:num_devices]


# Descriptions.


@dataclass(frozen=True)
class DeviceInfo:
    """A device as listed by `keras-mgpu devices`.

    Attributes:
        name: Such as `"/GPU:0"`.
        kind: `"GPU"` or `"CPU"`.
        description: The model name of a GPU, if known.
        memory_bytes: The memory that TensorFlow may use on a GPU.
    """

    name: str
    kind: str
    description: str
    memory_bytes: int | None


def describe() -> list[DeviceInfo]:
    """Returns a description of every available device."""
    details = [
        tf.config.experimental.get_device_details(gpu)
        for gpu in tf.config.list_physical_devices("GPU")
    ]
    found = []
    for device in tf.config.list_logical_devices():
        index = tf.DeviceSpec.from_string(device.name).device_index
        is_gpu = device.device_type == "GPU"
        card = details[index].get("device_name", "") if is_gpu and index < len(details) else ""
        memory = memory_limit(device.name)
        found.append(DeviceInfo(normalize(device.name), device.device_type, card, memory))
    return found


def memory_limit(device: str) -> int | None:
    """Returns the memory that TensorFlow may use on a GPU of this process.

    It is `None` for other devices. The limit of a CPU is meaningless.
    """
    if kind_of(device) != "GPU":
        return None
    name = normalize(device)
    return next((int(d.memory_limit) for d in local_devices() if normalize(d.name) == name), None)


# PCI bus IDs.

_BUS = re.compile(r"pci bus id: ([0-9A-Fa-f:.]+)")


@functools.cache
def buses_of_gpus() -> dict[str, str]:
    """Maps the full name of each GPU of this process to its PCI bus ID, in order."""
    visible = tf.config.list_logical_devices("GPU")
    if not visible:
        return {}
    descriptions = {
        tf.DeviceSpec.from_string(each.name).device_index: each.physical_device_desc
        for each in local_devices()
        if each.device_type == "GPU"
    }
    found = {}
    for gpu in visible:
        index = tf.DeviceSpec.from_string(gpu.name).device_index
        match = _BUS.search(descriptions.get(index, ""))
        if match:
            found[gpu.name] = match[1]
    return found
