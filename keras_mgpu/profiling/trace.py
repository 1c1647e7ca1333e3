"""What a profiler trace says about a step: when calls ran, and how time was spent."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from keras_mgpu.internals.tf_profiler import CALL_BEGINS, CALL_DONE, NEXT_BATCH

_ALL_REDUCE_KERNEL = re.compile("nccl|allreduce", re.IGNORECASE)
_ANY = re.compile("")
_COPY = re.compile("Memcpy")
_GPU_PLANE = re.compile(r"/device:GPU:(\d+)")


class CallEvent(NamedTuple):
    """The beginning or the end of a function call.

    Args:
        name: Name of the call in the graph.
        time: In seconds, by the profiler's clock.
        is_begin: Whether the call begins or ends.
    """

    name: str
    time: float
    is_begin: bool


@dataclass(frozen=True)
class DeviceShares:
    """How a GPU spent a step.

    Args:
        busy: Share of the step in which any kernel ran.
        all_reduce: Share in which kernels ran that sum over replicas.
    """

    busy: float
    all_reduce: float


def calls_in(trace: Any) -> Iterator[CallEvent]:
    """Every call of a function that TensorFlow has not inlined."""
    for plane in trace.planes:
        kinds = {
            number: metadata.name == CALL_BEGINS
            for number, metadata in plane.event_metadata.items()
            if metadata.name in (CALL_BEGINS, CALL_DONE)
        }
        names = [n for n, metadata in plane.stat_metadata.items() if metadata.name == "name"]
        for line in plane.lines if kinds and names else ():
            for event in line.events:
                if event.metadata_id in kinds:
                    is_begin, time = kinds[event.metadata_id], _begin_of(event, line)
                    for name in _texts(plane, event, names[0]):
                        yield CallEvent(name, time, is_begin)


class Kernel(NamedTuple):
    """A kernel that a GPU has run.

    Args:
        op: Name of the op in its function.
        begin: In seconds, by the profiler's clock.
        end: The same.
    """

    op: str
    begin: float
    end: float


def kernels_in(trace: Any) -> Iterator[Kernel]:
    """Every kernel of every GPU that is known to belong to an op, in the order of each stream."""
    for plane in trace.planes:
        numbers = [n for n, metadata in plane.stat_metadata.items() if metadata.name == "tf_op"]
        if not numbers or not _GPU_PLANE.search(plane.name):
            continue
        for line in plane.lines:
            for event in line.events:
                begin = _begin_of(event, line)
                for text in _texts(plane, event, numbers[0]):
                    op = text.rpartition(":")[0] or text
                    yield Kernel(op, begin, begin + event.duration_ps * 1e-12)


def device_shares(trace: Any, seconds: float) -> dict[int, DeviceShares]:
    """For each GPU in the trace, by its index, how it spent a step of so many seconds."""
    found = {}
    for plane in trace.planes:
        match = _GPU_PLANE.search(plane.name)
        if match is not None:
            busy, summing = _covered(_spans(plane)), _covered(_spans(plane, _ALL_REDUCE_KERNEL))
            found[int(match[1])] = DeviceShares(busy / seconds, summing / seconds)
    return found


def seconds_for_input(trace: Any) -> float:
    """The time that a step of `fit` has waited for its batch."""
    return _covered([span for plane in trace.planes for span in _spans(plane, NEXT_BATCH)])


def copies_in(trace: Any) -> dict[int, Counter[str]]:
    """For each GPU in the trace, by its index, how many copies of each kind it took part in.

    Kinds are those of the profiler, such as `"MemcpyH2D"`, from the host to a device.
    """
    found = {}
    for plane in trace.planes:
        match = _GPU_PLANE.search(plane.name)
        if match is not None:
            names = {number: each.name for number, each in plane.event_metadata.items()}
            kinds = (names[event.metadata_id] for line in plane.lines for event in line.events)
            found[int(match[1])] = Counter(kind for kind in kinds if _COPY.match(kind))
    return found


def outline_of(trace: Any) -> list[dict[str, Any]]:
    """What kinds of things a trace has recorded, and how many of each; for who cannot see it."""
    return [
        {
            "plane": plane.name,
            "lines": [[line.name, len(line.events)] for line in plane.lines],
            "stats": sorted({plane.stat_metadata[number].name for number in _stats_in(plane)}),
        }
        for plane in trace.planes
        if _GPU_PLANE.search(plane.name)
    ]


def _stats_in(plane: Any) -> Iterator[int]:
    """The kinds of facts that events carry. Other names of a plane may be values, such as paths."""
    for line in plane.lines:
        for event in line.events:
            for stat in event.stats:
                yield stat.metadata_id


def _texts(plane: Any, event: Any, stat_id: int) -> Iterator[str]:
    """The values of a text that an event carries."""
    for stat in event.stats:
        if stat.metadata_id == stat_id:
            yield stat.str_value or plane.stat_metadata[stat.ref_value].name


def _begin_of(event: Any, line: Any) -> float:
    """When an event begins, in seconds."""
    return float(line.timestamp_ns * 1e-9 + event.offset_ps * 1e-12)


def _spans(plane: Any, name: re.Pattern[str] = _ANY) -> list[tuple[float, float]]:
    """Begin and end, in seconds, of all events whose name matches."""
    numbers = {n for n, metadata in plane.event_metadata.items() if name.search(metadata.name)}
    found = []
    for line in plane.lines if numbers else ():
        for event in line.events:
            if event.metadata_id in numbers:
                begin = _begin_of(event, line)
                found.append((begin, begin + event.duration_ps * 1e-12))
    return found


def _covered(spans: list[tuple[float, float]]) -> float:
    """The time in which at least one of the spans runs."""
    total, until = 0.0, float("-inf")
    for begin, end in sorted(spans):
        total += max(0.0, end - max(begin, until))
        until = max(until, end)
    return total
