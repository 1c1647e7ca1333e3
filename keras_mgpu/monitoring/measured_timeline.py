"""The timeline of a pipeline's step, measured with TensorFlow's profiler.

Each op of the schedule is a call in the traced step, under a scope such as
`stage_1/forward/micro_batch_3`. The profiler notes when such a call begins and when it is done, so
that a trace can be folded into the same form that a predicted timeline has.
"""

from __future__ import annotations

import glob
import os
import re
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import tensorflow as tf
from tensorflow.tsl.profiler.protobuf import xplane_pb2

from keras_mgpu.schedule import Op, Schedule
from keras_mgpu.timeline import Costs, Span, Timeline, replay

# The call of the stage itself. The loss of a micro-batch is one more, and may overlap the next.
_CALL = re.compile(r"(?:^|/)stage_(\d+)/(\w+)/micro_batch_(\d+)/(?:Stateful)?PartitionedCall$")
# The scopes that the executor opens.
_LETTERS = {"forward": "F", "recompute": "R", "backward": "B", "weights": "W"}
_BEGIN, _DONE = "ExecutorState::ProcessAsync::Start", "ExecutorState::ProcessAsync::Done"


@dataclass(frozen=True)
class MeasuredStep:
    """One step of a pipeline, as it ran.

    Args:
        timeline: When each op ran, in seconds from the first one's start.
        schedule: The order it followed.
        seconds: The whole step, with the batch before the first op and the update behind the last.
    """

    timeline: Timeline
    schedule: Schedule
    seconds: float

    @property
    def busy(self) -> tuple[float, ...]:
        """For each device, the share of the step in which it worked on a micro-batch."""
        busy = [0.0] * self.timeline.num_lanes
        for span in self.timeline.spans:
            busy[span.lane] += span.end - span.start
        return tuple(each / self.seconds for each in busy)

    @property
    def idle(self) -> tuple[float, ...]:
        """For each device, the rest of the step: waiting, or the update of the weights."""
        return tuple(1 - each for each in self.busy)

    @property
    def costs(self) -> Costs:
        """What ops took, the median of each kind in each stage."""
        taken: dict[tuple[str, int], list[float]] = defaultdict(list)
        for span in self.timeline.spans:
            taken[span.op.kind, span.op.stage].append(span.end - span.start)
        stages = range(self.schedule.num_stages)

        def per_stage(kind: str) -> tuple[float, ...]:
            return tuple(statistics.median(taken.get((kind, stage), [0.0])) for stage in stages)

        return Costs(per_stage("F"), per_stage("B"), per_stage("W"), per_stage("R"))

    @property
    def predicted(self) -> Timeline:
        """The same schedule replayed with these costs: the step if nothing got between."""
        return replay(self.schedule, self.costs)

    @property
    def transfers(self) -> Mapping[tuple[int, int], float]:
        """For stages on different devices, seconds from the end of one to the start of the other.

        The shortest over all micro-batches: the others had to wait for more than the transfer.
        """
        ends = {span.op: span for span in self.timeline.spans}
        found: dict[tuple[int, int], float] = {}
        for span in self.timeline.spans:
            for need in self.schedule.needs(span.op):
                if need in ends and ends[need].lane != span.lane:
                    pair = need.stage, span.op.stage
                    gap = max(0.0, span.start - ends[need].end)
                    found[pair] = min(gap, found.get(pair, gap))
        return found

    @property
    def critical_stage(self) -> int:
        """The stage that most of the longest chain of ops is in."""
        spans = {span.op: span for span in self.timeline.spans}
        before: dict[Op, Op] = {}
        for lane in self.schedule.lanes:
            before.update(zip(lane[1:], lane))
        seconds: dict[int, float] = defaultdict(float)
        current: Op | None = max(spans, key=lambda op: spans[op].end)
        while current is not None:
            seconds[current.stage] += spans[current].end - spans[current].start
            behind = [before[current]] if current in before else []
            behind += self.schedule.needs(current)
            there = [op for op in behind if op in spans]
            current = max(there, key=lambda op: spans[op].end) if there else None
        return max(seconds, key=lambda stage: seconds[stage])

    def scalars(self) -> dict[str, float]:
        """Numbers for TensorBoard, of the whole step."""
        found = {
            "pipeline/bubble": self.timeline.bubble,
            "pipeline/bubble_predicted": self.predicted.bubble,
            "pipeline/step_seconds": self.seconds,
            "pipeline/critical_stage": float(self.critical_stage),
        }
        for (source, target), seconds in self.transfers.items():
            found[f"pipeline/transfer_{source}_to_{target}_ms"] = 1000 * seconds
        return found


class Profile:
    """Runs TensorFlow's profiler from one moment to another.

    Only one profiler can run at a time. If another one does, this one sees nothing.
    """

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="keras_mgpu_profile_")
        self._begin = time.perf_counter()
        try:
            tf.profiler.experimental.start(self._folder.name)
            self.is_running = True
        except tf.errors.AlreadyExistsError:
            self.is_running = False

    def stop(self) -> float:
        """Ends it; returns the seconds since it began."""
        seconds = time.perf_counter() - self._begin
        if self.is_running:
            tf.profiler.experimental.stop()
        return seconds

    def read(self) -> Any:
        """What it saw, or `None`. It can be read once."""
        with self._folder as folder:
            for path in glob.glob(os.path.join(folder, "**", "*.xplane.pb"), recursive=True):
                with open(path, "rb") as file:
                    return xplane_pb2.XSpace.FromString(file.read())
        return None


def profile_step(split: Any, x: Any, y: Any, sample_weight: Any) -> MeasuredStep:
    """Profiles a training step of a split model, and puts everything back that it changed.

    Raises:
        RuntimeError: If another profiler is running.
    """
    kept: list[tuple[Any, Any]] = []

    def step() -> None:
        split.train_on_batch(x, y, sample_weight)

    try:
        split.make_train_function()
        variables = [*split.model.variables, *split.optimizer.variables]
        kept = [(variable, variable.numpy()) for variable in variables]
        step()  # Traces, if that has not been done.
        profile = Profile()
        try:
            step()
        finally:
            seconds = profile.stop()
        space = profile.read()
    finally:
        for variable, value in kept:
            variable.assign(value)
        split.reset_metrics()
    measured = None if space is None else fold(space, split.schedule, seconds)
    if measured is None:
        raise RuntimeError("Nothing was seen of the step: another profiler is running.")
    return measured


def fold(space: Any, schedule: Schedule, seconds: float | None = None) -> MeasuredStep | None:
    """Folds a trace of one step into a timeline.

    Args:
        space: What the profiler saw.
        schedule: The schedule of the pipeline.
        seconds: How long the step took, if that is known.
    """
    begins: dict[Op, float] = {}
    ends: dict[Op, float] = {}
    for name, moment, is_begin in _calls(space):
        match = _CALL.search(name)
        if match is None or match[2] not in _LETTERS:
            continue
        op = Op(_LETTERS[match[2]], int(match[1]), int(match[3]))
        if is_begin:
            begins[op] = min(moment, begins.get(op, moment))
        else:
            ends[op] = max(moment, ends.get(op, moment))
    lanes = {op: lane for lane, ops in enumerate(schedule.lanes) for op in ops}
    seen = [op for op in lanes if op in begins and op in ends]
    if not seen:
        return None
    first = min(begins[op] for op in seen)
    spans = tuple(Span(lanes[op], op, begins[op] - first, ends[op] - first) for op in seen)
    timeline = Timeline(len(schedule.lanes), tuple(sorted(spans, key=lambda span: span.start)))
    return MeasuredStep(timeline, schedule, max(seconds or 0.0, timeline.makespan))


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
        if match is None:
            continue
        spans: list[tuple[float, float, bool]] = []
        for line in plane.lines:
            for event in line.events:
                begin = line.timestamp_ns * 1e-9 + event.offset_ps * 1e-12
                name = plane.event_metadata[event.metadata_id].name.lower()
                is_sum = "nccl" in name or "allreduce" in name
                spans.append((begin, begin + event.duration_ps * 1e-12, is_sum))
        sums = [(begin, end) for begin, end, is_sum in spans if is_sum]
        found[f"gpu_{match[1]}"] = DeviceShares(
            _covered([(begin, end) for begin, end, _ in spans]) / seconds,
            _covered(sums) / seconds,
        )
    return found


def _covered(spans: list[tuple[float, float]]) -> float:
    """The time in which at least one of the spans runs."""
    total, until = 0.0, float("-inf")
    for begin, end in sorted(spans):
        total += max(0.0, end - max(begin, until))
        until = max(until, end)
    return total


def _calls(space: Any) -> Iterator[tuple[str, float, bool]]:
    """Name, time in seconds, and whether it begins or ends, of every call that runs by itself."""
    for plane in space.planes:
        kinds = {
            number: metadata.name == _BEGIN
            for number, metadata in plane.event_metadata.items()
            if metadata.name in (_BEGIN, _DONE)
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
