"""The memory of devices: what is in use, when there is none left, and how to do with little."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from keras_mgpu.system import devices

HOST = "/CPU:0"
# What TensorFlow says if the target of a copy between devices could not be allocated.
_NO_ROOM_FOR_COPY = "Dst tensor is not initialized"


@dataclass(frozen=True)
class DeviceMemory:
    """The memory that TensorFlow has on a device, in bytes.

    Attributes:
        used: What tensors take.
        limit: What TensorFlow may use.
    """

    used: int
    limit: int

    @property
    def free(self) -> int:
        return max(0, self.limit - self.used)


def memory_of(device: str) -> DeviceMemory | None:
    """The memory of a GPU of this process; `None` for devices where nobody counts."""
    limit = _limit_of(device)
    if limit is None:
        return None
    name = devices.normalize(device)
    return DeviceMemory(int(tf.config.experimental.get_memory_info(name)["current"]), limit)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether TensorFlow raised an error because a device had no memory left."""
    if isinstance(error, tf.errors.InternalError):
        return _NO_ROOM_FOR_COPY in f"{error}"
    return isinstance(error, tf.errors.ResourceExhaustedError)


def read(variable: tf.Variable) -> tf.Tensor:
    """The value of a variable on the device of the scope, without a second one on its own device.

    Once an optimizer has written to single rows of a variable, TensorFlow copies it for every read.
    """
    if _is_on_gpu(variable):
        tf.raw_ops.DisableCopyOnRead(resource=variable.handle)  # Until rows are written again.
    return variable.read_value()


def to_host(variable: tf.Variable) -> tf.Tensor:
    """The value of a variable in host memory. It stays what it is if the variable changes."""
    with tf.device(HOST):
        return tf.identity(read(variable))


def overwrite(variable: tf.Variable, value: tf.Tensor) -> None:
    """Assigns a tensor in host memory, also where a device has no room for a second value.

    TensorFlow makes the new value before it drops the old one. Where there is no room for that, the
    old one waits in host memory until the new one is there.
    """
    if not _is_on_gpu(variable):
        variable.assign(to_be_copied(value))
    elif not _has_room(variable) or not _succeeds(lambda: variable.assign(to_be_copied(value))):
        old = take(variable)
        try:
            put(variable, value)
        except BaseException:
            put(variable, old)
            raise


def take(variable: tf.Variable) -> tf.Tensor:
    """Takes a variable's value from its device into host memory; `put` gives it back."""
    value = to_host(variable)
    _assign(variable, tf.zeros([0], variable.dtype))
    return value


def put(variable: tf.Variable, value: tf.Tensor) -> None:
    """Gives a variable a value that lies in host memory."""
    _assign(variable, to_be_copied(value))


def to_be_copied(value: tf.Tensor) -> tf.Tensor:
    """The same tensor, in the same memory, to be copied to a device and forgotten.

    TensorFlow keeps the copy as long as the tensor: as long as a checkpoint is read, for example.
    """
    with tf.device(HOST):
        return tf.identity(value)


def num_bytes_of(value: Any) -> int:
    """The size of a tensor or a variable."""
    return int(math.prod(value.shape) * tf.as_dtype(value.dtype).size)


@functools.cache
def _limit_of(device: str) -> int | None:
    try:
        return devices.memory_limit(device)
    except (tf.errors.OpError, RuntimeError):  # GPUs that are divided can be more than it lists.
        return None


def _is_on_gpu(variable: Any) -> bool:
    """Whether a variable is a single one, not one for each replica, on a GPU of this process."""
    is_single = isinstance(variable, tf.Variable) and not hasattr(variable, "values")
    return is_single and tf.executing_eagerly() and _limit_of(variable.device) is not None


def _has_room(variable: tf.Variable) -> bool:
    """Whether a device is likely to have room for a second value of a variable."""
    memory = memory_of(variable.device)
    # What is free may be in pieces. TensorFlow would try for ten seconds before it gives up.
    return memory is None or 2 * num_bytes_of(variable) <= memory.free


def _succeeds(assign: Callable[[], object]) -> bool:
    try:
        assign()
    except tf.errors.OpError as error:
        if is_out_of_memory(error):
            return False
        raise
    return True


def _assign(variable: tf.Variable, value: tf.Tensor) -> None:
    """Assigns a value of any shape, which the methods of a variable would not."""
    tf.raw_ops.AssignVariableOp(resource=variable.handle, value=value, validate_shape=False)
