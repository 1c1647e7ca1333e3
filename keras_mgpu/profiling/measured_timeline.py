"""The timeline of a pipeline's step, measured with TensorFlow's profiler.

Each op of the schedule is a call in the traced step, under a scope such as
`stage_1/forward/micro_batch_3`. The profiler notes when such a call begins and when it is done, so
that a trace can be folded into the same form that a predicted timeline has.
"""

from __future__ import annotations

import contextlib
import re
import statistics
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from keras_mgpu.blueprint.schedule import Op, Schedule
from keras_mgpu.blueprint.timeline import Costs, Span, Timeline, replay
from keras_mgpu.internals.keras_variables import global_seed_state
from keras_mgpu.profiling.profile import Profile, calls_in

# The call of the stage itself. The loss of a micro-batch is one more, and may overlap the next.
_CALL = re.compile(r"(?:^|/)stage_(\d+)/(\w+)/micro_batch_(\d+)/(?:Stateful)?PartitionedCall$")
# The scopes that the executor opens.
UNSEEN = "stages are calls of their own only with several micro-batches, and not with run_eagerly."
_LETTERS = {"forward": "F", "recompute": "R", "backward": "B", "weights": "W"}
_TRIES = 5


class MissedOpsError(RuntimeError):
    """The profiler saw some ops of a step and missed others.

    It notes a call when the thread that made it goes on, which can be after the step has ended.
    """


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


def profile_step(split: Any, x: Any, y: Any, sample_weight: Any) -> MeasuredStep:
    """Profiles a training step of a split model, and puts everything back that it changed.

    Raises:
        RuntimeError: If not all of the step can be seen.
    """
    kept: list[tuple[Any, Any]] = []
    try:
        split.make_train_function()
        in_metrics = [variable for metric in split.metrics for variable in metric.variables]
        seed = global_seed_state()
        variables = [*split.model.variables, *split.optimizer.variables, *in_metrics]
        variables += [] if seed is None else [seed]
        kept = [(variable, variable.numpy()) for variable in variables]
        split.train_on_batch(x, y, sample_weight)  # Traces, if that has not been done.
        for _ in range(_TRIES - 1):
            with contextlib.suppress(MissedOpsError):
                return _measure(split, x, y, sample_weight)
        return _measure(split, x, y, sample_weight)
    finally:
        split.reset_metrics()
        for variable, value in kept:
            variable.assign(value)


def _measure(split: Any, x: Any, y: Any, sample_weight: Any) -> MeasuredStep:
    profile = Profile()
    try:
        split.train_on_batch(x, y, sample_weight)
    finally:
        seconds = profile.stop()
    space = profile.read()
    if space is None:
        raise RuntimeError("Nothing was seen of the step: another profiler is running.")
    measured = fold(space, split.schedule, seconds)
    if measured is None:
        raise RuntimeError(f"Nothing was seen of the step: {UNSEEN}")
    return measured


def fold(space: Any, schedule: Schedule, seconds: float | None = None) -> MeasuredStep | None:
    """Folds a trace of one step into a timeline.

    Args:
        space: What the profiler saw.
        schedule: The schedule of the pipeline.
        seconds: How long the step took, if that is known.

    Returns:
        `None` if it has no op of the schedule.

    Raises:
        MissedOpsError: If it has some of them, and not all.
    """
    begins: dict[Op, float] = {}
    ends: dict[Op, float] = {}
    for name, moment, is_begin in calls_in(space):
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
    if len(seen) < len(lanes):
        raise MissedOpsError(f"The profiler missed {len(lanes) - len(seen)} of {len(lanes)} ops.")
    first = min(begins[op] for op in seen)
    spans = tuple(Span(lanes[op], op, begins[op] - first, ends[op] - first) for op in seen)
    timeline = Timeline(len(schedule.lanes), tuple(sorted(spans, key=lambda span: span.start)))
    return MeasuredStep(timeline, schedule, max(seconds or 0.0, timeline.makespan))
