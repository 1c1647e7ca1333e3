"""Simulated GPUs: TensorFlow sees `/GPU:0` … on a machine without any.

    import simgpu

    simgpu.load()  # before anything makes a tensor
    ...
    simgpu.reset()
    model.fit(...)
    simgpu.brief()

A plug-in gives TensorFlow devices of type GPU that have memory, streams and events of their own.
Their kernels are TensorFlow's CPU kernels. They take as long as on a GPU if asked to:

    simgpu.set_cost("A100", time_scale=100)

`docs/simulator.md` says what all this proves.
"""

import contextlib
import ctypes
import json
import os
from dataclasses import dataclass
from pathlib import Path

import build
import costs

KERNELS = Path(__file__).parent / "kernels.pb"
_plugin = None


def load(num_devices=4, memory_mb=2048):
    """Gives TensorFlow simulated GPUs. Environment variables of the plug-in win over arguments.

    Args:
        num_devices: Integer, how many.
        memory_mb: Integer, the memory of each device in MiB, or a list with one for each.
    """
    from tensorflow.python.framework import load_library

    global _plugin
    if _plugin is not None:
        return
    sizes = [memory_mb] if isinstance(memory_mb, int) else memory_mb
    os.environ.setdefault("SIMGPU_COUNT", str(num_devices))
    os.environ.setdefault("SIMGPU_MEMORY_MB", ",".join(map(str, sizes)))
    os.environ.setdefault("SIMGPU_KERNELS", str(KERNELS))
    path = str(build.library())
    load_library.load_pluggable_device_library(path)
    _plugin = ctypes.CDLL(path)
    _plugin.simgpu_stats.restype = ctypes.c_size_t
    _plugin.simgpu_stats.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
    _plugin.simgpu_records.restype = ctypes.c_size_t
    _plugin.simgpu_records.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
    _plugin.simgpu_set_memory_limit.restype = ctypes.c_int64
    _plugin.simgpu_set_memory_limit.argtypes = [ctypes.c_int, ctypes.c_int64]
    _plugin.simgpu_slow_down.restype = ctypes.c_double
    _plugin.simgpu_slow_down.argtypes = [ctypes.c_int, ctypes.c_double]
    _plugin.simgpu_set_cost(costs.as_struct(costs.from_environment()))


def reset():
    """Sets all counters to zero, and forgets the kernels and copies until now."""
    _plugin.simgpu_reset()


def stats():
    """What each device has done since the last `reset`.

    Returns:
        A list with a dict for each device:
        - `device`: its index.
        - `limit`, `reserved`: bytes of memory that it has, and that TensorFlow has taken.
        - `failed`: how often it had no memory left.
        - `h2d`, `d2h`: copies from and to the host. `n` of them, with `bytes` in all; `sizes` maps
          bytes of one copy to the number of such copies.
        - `d2d`: the same for copies to other devices, by their index.
        - `kernels`: for each type of op, how many were launched and their simulated microseconds.
        - `launches`: kernels without those that have nothing to do on a device: ops on shapes, or
          with all arguments in host memory.
        - `host_syncs`, `events`: how often the host waited, and how many events were recorded.
        - `misplaced`: inputs of kernels that lay in the wrong memory.
    """
    devices = json.loads(_text(_plugin.simgpu_stats))
    for device in devices:
        device["d2d"] = {int(index): traffic for index, traffic in device["d2d"].items()}
        for traffic in (device["h2d"], device["d2h"], *device["d2d"].values()):
            traffic["sizes"] = {int(size): number for size, number in traffic["sizes"].items()}
    return devices


def brief(steps=1):
    """A line about each device, per step if the number of steps is given."""
    lines = []
    for device in stats():
        kernels = sum(number for number, _ in device["kernels"].values())
        copies = [
            f"{kind} {traffic['n'] / steps:g} ({traffic['bytes'] / steps:g} B)"
            for kind, traffic in (
                ("h2d", device["h2d"]),
                ("d2h", device["d2h"]),
                *((f"to GPU:{index}", traffic) for index, traffic in device["d2d"].items()),
            )
        ]
        lines.append(f"GPU:{device['device']} kernels {kernels / steps:g} {' '.join(copies)}")
    return "\n".join(lines)


@contextlib.contextmanager
def memory_limit(device_index, num_bytes):
    """Lets TensorFlow reserve no more than so many bytes on a device.

    What it has reserved already it keeps, and fills first.

    Args:
        device_index: Integer, such as 1 for `/GPU:1`.
        num_bytes: Integer, the limit.
    """
    before = _plugin.simgpu_set_memory_limit(device_index, num_bytes)
    try:
        yield
    finally:
        _plugin.simgpu_set_memory_limit(device_index, before)


def set_cost(gpu=None, **numbers):
    """Has kernels and copies take time from now on, or none if nothing is given.

    Args:
        gpu: Name of a GPU in `costs.GPUS`. Defaults to one that takes no time.
        numbers: Fields of `costs.Cost` to replace, such as `launch=0.01` or `time_scale=100`.
    """
    _plugin.simgpu_set_cost(costs.as_struct(costs.cost_of(gpu, **numbers)))


@contextlib.contextmanager
def slow_down(device_index, factor):
    """Has the kernels of one device take longer than those of the others, by a factor."""
    before = _plugin.simgpu_slow_down(device_index, factor)
    try:
        yield
    finally:
        _plugin.simgpu_slow_down(device_index, before)


@dataclass(frozen=True)
class Kernel:
    """A kernel that ran on a device.

    Attributes:
        device: Index of the device.
        stream: Number of its stream.
        enqueued: When the host asked for it, in seconds of `time.monotonic()`.
        begin: Simulated time when it began, likewise.
        end: When it ended.
        name: Name of the node in its graph.
        op: Type of the op, such as `"MatMul"`.
    """

    device: int
    stream: int
    enqueued: float
    begin: float
    end: float
    name: str
    op: str


@dataclass(frozen=True)
class Copy:
    """A copy of memory.

    Attributes:
        device: Index of the device whose stream it is on.
        stream: Number of the stream, or 0 if the host waited for it.
        enqueued: When the host asked for it, in seconds of `time.monotonic()`.
        begin: Simulated time when it began, likewise.
        end: When it ended.
        source: Index of the device that the bytes come from, or `None` for the host.
        target: Likewise for where they go.
        num_bytes: How many.
    """

    device: int
    stream: int
    enqueued: float
    begin: float
    end: float
    source: int | None
    target: int | None
    num_bytes: int


def kernels():
    """The latest kernels since the last `reset`, as a list of `Kernel`, in order of launches."""
    return [Kernel(*_in_seconds(each)) for each in _records() if isinstance(each[5], str)]


def copies():
    """The latest copies since the last `reset`, as a list of `Copy`, in order of their calls."""
    found = []
    for record in _records():
        if not isinstance(record[5], str):
            *start, source, target, num_bytes = _in_seconds(record)
            found.append(Copy(*start, _device(source), _device(target), num_bytes))
    return found


def _records():
    """At most 131072 kernels and copies together."""
    return json.loads(_text(_plugin.simgpu_records))


def _in_seconds(record):
    device, stream, *times = record[:5]
    return device, stream, *(time * 1e-9 for time in times), *record[5:]


def _device(index):
    return None if index < 0 else index


def _text(function):
    """What a function of the plug-in writes into a buffer of sufficient size."""
    size = 1 << 16
    while True:
        buffer = ctypes.create_string_buffer(size)
        needed = function(buffer, size)
        if needed <= size:
            return buffer.value.decode()
        size = 2 * needed
