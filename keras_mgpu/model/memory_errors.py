"""Errors of devices that are too small: what was to be stored, what is there, and what helps."""

from __future__ import annotations

import contextlib
import gc
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import tensorflow as tf

from keras_mgpu.blueprint.partition import readable_bytes
from keras_mgpu.system import devices
from keras_mgpu.system.memory import DeviceMemory, is_out_of_memory, memory_of

# Types of variables that certainly are on the device that they are made on.
_ON_DEVICE = (tf.float32, tf.float16, tf.bfloat16, tf.float64)
# How TensorFlow says what it had no memory for.
_ALLOCATION = re.compile(r"allocating tensor with shape(\[[^\]]*\]) and type (\w+) on (\S+)")
SMALLER_STAGES = (
    "one more device, so that stages get smaller; or `cuts` that give this stage fewer layers"
)


class OutOfMemoryError(tf.errors.ResourceExhaustedError):
    """A device has no memory left. The message says for what, and what helps."""


@dataclass(frozen=True)
class Item:
    """A variable that is to be stored.

    Attributes:
        name: Its name.
        num_bytes: Its size.
        dtype: Its type. TensorFlow keeps variables of some types in host memory, for any device.
    """

    name: str
    num_bytes: int
    dtype: tf.DType

    @property
    def least_bytes(self) -> int:
        """What a device itself needs for it at least."""
        return self.num_bytes if self.dtype in _ON_DEVICE else 0

    def __str__(self) -> str:
        return f"{self.name} ({readable_bytes(self.num_bytes)})"


@dataclass(frozen=True)
class Demand:
    """What is to be stored on a device together.

    Attributes:
        task: What this is done for, such as `"placing the weights of stage 1 (dense)"`.
        device: Where they go.
        items: The variables.
        helps: What helps if there is no room for them.
        aftermath: What has become of the model then.
    """

    task: str
    device: str
    items: Sequence[Item]
    helps: str
    aftermath: str

    @property
    def num_bytes(self) -> int:
        return sum(item.num_bytes for item in self.items)

    @property
    def least_bytes(self) -> int:
        """What the device itself needs at least."""
        return sum(item.least_bytes for item in self.items)

    def error(
        self, memory: DeviceMemory | None, failed: Item | None = None, beside: int = 0
    ) -> OutOfMemoryError:
        """The error that there is no room for it.

        Args:
            memory: The memory of the device before anything was stored, if that is known.
            failed: The variable that found no room; `None` if it was not even tried.
            beside: Bytes that are to be stored there as well.
        """
        largest = max(self.items, key=lambda item: item.num_bytes)
        detail = f"The largest is {largest}." if failed is None else f"No room for {failed}."
        number = "1 variable" if len(self.items) == 1 else f"{len(self.items)} variables"
        lines = [
            f"Out of memory while {self.task} on {self.device}.",
            f"To be stored: {readable_bytes(self.num_bytes)} in {number}. {detail}",
            *_about(memory, self.num_bytes, beside),
            f"What helps: {self.helps}.",
            self.aftermath,
        ]
        return OutOfMemoryError(None, None, "\n".join(lines))


def check_room(demands: Sequence[Demand]) -> None:
    """Raises an error if devices certainly have no room for what is to be stored.

    TensorFlow would try for ten seconds first, and write pages about its memory to the log.

    Raises:
        OutOfMemoryError: For the first that does not fit beside those before it.
    """
    if _shortage(demands) is not None:
        gc.collect()  # Keras models hold themselves: `del` alone does not free their memory.
    error = _shortage(demands)
    if error is not None:
        raise error


@contextlib.contextmanager
def naming(demand: Demand, item: Item, memory: DeviceMemory | None) -> Iterator[None]:
    """Errors say what was to be stored if a device runs out of memory inside.

    Args:
        demand: What is to be stored.
        item: What is being stored inside.
        memory: The memory of the device before anything was stored, if that is known.
    """
    try:
        yield
    except tf.errors.OpError as error:
        if is_out_of_memory(error):
            raise demand.error(memory, item) from error
        raise


@contextlib.contextmanager
def running(task: str, helps: str) -> Iterator[None]:
    """Errors say what was being done if a device runs out of memory inside.

    For what runs beside training, and takes memory only while it runs.

    Args:
        task: What is done, such as `"measuring stage 1 (dense) on /GPU:1"`.
        helps: What helps.
    """
    try:
        yield
    except OutOfMemoryError:
        raise  # It knows better.
    except tf.errors.OpError as error:
        if not is_out_of_memory(error):
            raise
        lines = [f"Out of memory while {task}.", *_allocation(error), f"What helps: {helps}."]
        raise OutOfMemoryError(None, None, "\n".join(lines)) from error


def _allocation(error: tf.errors.OpError) -> list[str]:
    """What TensorFlow says about an allocation that failed, as lines of a message."""
    found = _ALLOCATION.search(f"{error}")
    if found is None:
        return []
    shape, dtype, name = found.groups()
    device = devices.normalize(name)
    memory = memory_of(device)
    lines = [f"To be stored: a tensor of shape {shape} and type {dtype} on {device}."]
    if memory is not None:
        used, limit = readable_bytes(memory.used), readable_bytes(memory.limit)
        lines.append(f"In use there before and after: {used} of {limit}.")
    return lines


def _shortage(demands: Sequence[Demand]) -> OutOfMemoryError | None:
    before: dict[str, int] = defaultdict(int)
    for demand in demands:
        device = devices.normalize(demand.device)
        memory = memory_of(device)
        if memory is not None and before[device] + demand.least_bytes > memory.free:
            return demand.error(memory, beside=before[device])
        before[device] += demand.least_bytes
    return None


def _about(memory: DeviceMemory | None, wanted: int, beside: int) -> list[str]:
    """What is known about the memory of a device, as lines of a message."""
    if memory is None:
        return []
    also = f", and {readable_bytes(beside)} are to be stored there as well" if beside else ""
    line = f"In use there: {readable_bytes(memory.used)} of {readable_bytes(memory.limit)}{also}."
    if wanted + beside <= memory.free:
        line += " What is free is in pieces that are too small, or in use by another process."
    return [line]
