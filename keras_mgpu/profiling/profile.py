"""What TensorFlow's profiler saw of a step: calls, and how time was spent."""

from __future__ import annotations

import glob
import os
import re
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from keras_mgpu.internals.tf_profiler import (
    CALL_BEGINS,
    CALL_DONE,
    NEXT_BATCH,
    parse_trace,
)

_SUMMING_KERNEL = re.compile("nccl|allreduce", re.IGNORECASE)
_ANY = re.compile("")
# A thread notes a call when it goes on, and may not have got to that when the step ends.
_SETTLE_SECONDS = 0.002


class Profile:
    """Runs TensorFlow's profiler from one moment to another.

    Only one profiler can run at a time. If another one does, this one sees nothing.
    """

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="keras_mgpu_profile_")
        options = tf.profiler.experimental.ProfilerOptions(python_tracer_level=0)
        try:
            tf.profiler.experimental.start(self._folder.name, options)
            self.is_running = True
        except tf.errors.AlreadyExistsError:
            self.is_running = False
        self._begin = time.perf_counter()

    def stop(self) -> float:
        """Ends it; returns the seconds from its begin until now."""
        seconds = time.perf_counter() - self._begin
        if self.is_running:
            self.is_running = False
            time.sleep(_SETTLE_SECONDS)
            tf.profiler.experimental.stop()
        return seconds

    def read(self) -> Any:
        """What it saw, or `None` if another one was running. It can be read once."""
        with self._folder as folder:
            for path in glob.glob(os.path.join(folder, "**", "*.xplane.pb"), recursive=True):
                with open(path, "rb") as file:
                    return parse_trace(file.read())
        return None


def calls_in(space: Any) -> Iterator[tuple[str, float, bool]]:
    """Name, time in seconds, and whether it begins or ends, of every call that runs by itself."""
    for plane in space.planes:
        kinds = {
            number: metadata.name == CALL_BEGINS
            for number, metadata in plane.event_metadata.items()
            if metadata.name in (CALL_BEGINS, CALL_DONE)
        }
        names = [n for n, metadata in plane.stat_metadata.items() if metadata.name == "name"]
        for line in plane.lines if kinds and names else ():
            for event in line.events:
                if event.metadata_id not in kinds:
                    continue
                for stat in event.stats:
                    if stat.metadata_id == names[0]:
                        text = stat.str_value or plane.stat_metadata[stat.ref_value].name
                        moment = line.timestamp_ns * 1e-9 + event.offset_ps * 1e-12
                        yield text, moment, kinds[event.metadata_id]


@dataclass(frozen=True)
class DeviceShares:
    """What a GPU did in a step.

    Args:
        busy: Share of the step in which any kernel ran.
        all_reduce: Share in which kernels ran that sum over replicas.
    """

    busy: float
    all_reduce: float


def device_shares(space: Any, seconds: float) -> dict[str, DeviceShares]:
    """For each GPU that the profiler saw, how the time of a step was spent, by `gpu_0`, …"""
    found = {}
    for plane in space.planes:
        match = re.search(r"/device:GPU:(\d+)", plane.name)
        if match is not None:
            busy, summing = _covered(_spans(plane)), _covered(_spans(plane, _SUMMING_KERNEL))
            found[f"gpu_{match[1]}"] = DeviceShares(busy / seconds, summing / seconds)
    return found


def seconds_for_input(space: Any) -> float:
    """The time in which a step of `fit` waited for its batch."""
    return _covered([span for plane in space.planes for span in _spans(plane, NEXT_BATCH)])


def _spans(plane: Any, name: re.Pattern[str] = _ANY) -> list[tuple[float, float]]:
    """Begin and end, in seconds, of all events with such a name."""
    numbers = {n for n, metadata in plane.event_metadata.items() if name.search(metadata.name)}
    found = []
    for line in plane.lines if numbers else ():
        for event in line.events:
            if event.metadata_id in numbers:
                begin = line.timestamp_ns * 1e-9 + event.offset_ps * 1e-12
                found.append((begin, begin + event.duration_ps * 1e-12))
    return found


def _covered(spans: list[tuple[float, float]]) -> float:
    """The time in which at least one of the spans runs."""
    total, until = 0.0, float("-inf")
    for begin, end in sorted(spans):
        total += max(0.0, end - max(begin, until))
        until = max(until, end)
    return total
