"""The timeline of a pipeline's step, measured with TensorFlow's profiler.

Each op of the schedule is a function call in the traced step, in a scope such as
`stage_1/forward/micro_batch_3`. The profiler records when such a call begins and ends, so a trace
holds a timeline of the same form as a predicted one. On a GPU a call only launches kernels. There
the profiler records the kernels, and their times count.
"""

from __future__ import annotations

import contextlib
import re
import statistics
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from keras_mgpu.blueprint.schedule import Op, Schedule, piece_in
from keras_mgpu.blueprint.timeline import Costs, Span, Timeline, replay
from keras_mgpu.internals.keras_variables import global_seed_state, value_of
from keras_mgpu.profiling.short_stages import warn_of_short_stages
from keras_mgpu.profiling.trace import Kernel, calls_in, kernels_in
from keras_mgpu.profiling.trace_recorder import TraceRecorder
from keras_mgpu.system import memory

# The call of a stage, in the scope of its op. The loss of a micro-batch is another call in a scope
# below, and may overlap the next micro-batch.
_CALL = re.compile(r"/(?:Stateful)?PartitionedCall$")
NO_STAGES = "stages can be traced only with several micro-batches and without `run_eagerly`"
_MAX_TRIES = 5


class MissedOpsError(RuntimeError):
    """The profiler has recorded some ops of a step and missed others.

    A call is recorded by the thread that made it, which can be after the step has ended.
    """


@dataclass(frozen=True)
class MeasuredStep:
    """One step of a pipeline, as it ran.

    Args:
        timeline: When each op ran, in seconds from the start of the first one.
        schedule: The schedule of the pipeline.
        seconds: How long the whole step took, including the time before the first op and the
            update of the weights after the last one.
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
        """How long ops took: the median of each kind in each stage."""
        taken: dict[tuple[str, int], list[float]] = defaultdict(list)
        for span in self.timeline.spans:
            taken[span.op.kind, span.op.stage].append(span.end - span.start)
        stages = range(self.schedule.num_stages)

        def per_stage(kind: str) -> tuple[float, ...]:
            return tuple(statistics.median(taken.get((kind, stage), [0.0])) for stage in stages)

        return Costs(per_stage("F"), per_stage("B"), per_stage("W"), per_stage("R"))

    @property
    def predicted(self) -> Timeline:
        """The same schedule replayed with these costs: the step without any disturbance."""
        return replay(self.schedule, self.costs)

    @property
    def transfers(self) -> Mapping[tuple[int, int], float]:
        """For stages on different devices, seconds from the end of one to the start of the other.

        The minimum over all micro-batches: the others waited for more than the transfer.
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
        """The stage in which most of the longest chain of ops lies."""
        spans = {span.op: span for span in self.timeline.spans}
        before: dict[Op, Op] = {}
        for lane in self.schedule.lanes:
            before.update(zip(lane[1:], lane))
        seconds: dict[int, float] = defaultdict(float)
        current: Op | None = max(spans, key=lambda op: spans[op].end)
        while current is not None:
            seconds[current.stage] += spans[current].end - spans[current].start
            earlier = [before[current]] if current in before else []
            earlier += self.schedule.needs(current)
            seen = [op for op in earlier if op in spans]
            current = max(seen, key=lambda op: spans[op].end) if seen else None
        return max(seconds, key=lambda stage: seconds[stage])

    def scalars(self) -> dict[str, float]:
        """Numbers for TensorBoard that describe the whole step."""
        found = {
            "pipeline/bubble": self.timeline.bubble,
            "pipeline/bubble_predicted": self.predicted.bubble,
            "pipeline/step_seconds": self.seconds,
            "pipeline/critical_stage": float(self.critical_stage),
        }
        for (source, target), seconds in self.transfers.items():
            found[f"pipeline/transfer_{source}_to_{target}_ms"] = 1000 * seconds
        return found

    @classmethod
    def from_trace(
        cls, trace: Any, schedule: Schedule, seconds: float = 0.0
    ) -> MeasuredStep | None:
        """Reads the timeline of one step from a trace.

        Args:
            trace: What the profiler has recorded.
            schedule: The schedule of the pipeline.
            seconds: How long the step took. Defaults to the time from the first op to the last.

        Returns:
            `None` if the trace has no op of the schedule.

        Raises:
            MissedOpsError: If it has some of them, but not all.
        """
        lanes = {op: lane for lane, ops in enumerate(schedule.lanes) for op in ops}
        times = {op: time for op, time in _times_of_calls(trace).items() if op in lanes}
        times |= _times_of_kernels(trace, schedule)
        if not times:
            return None
        if len(times) < len(lanes):
            num_missed = len(lanes) - len(times)
            raise MissedOpsError(f"The profiler missed {num_missed} of {len(lanes)} ops.")
        first = min(begin for begin, _ in times.values())
        spans = [
            Span(lanes[op], op, begin - first, end - first) for op, (begin, end) in times.items()
        ]
        timeline = Timeline(len(schedule.lanes), tuple(sorted(spans, key=lambda span: span.start)))
        return cls(timeline, schedule, max(seconds, timeline.makespan))


def profile_step(split: Any, x: Any, y: Any, sample_weight: Any) -> MeasuredStep:
    """Profiles a training step of a split model, and undoes everything that it has changed.

    Raises:
        RuntimeError: If the step cannot be traced completely.
    """
    kept: list[tuple[Any, Any]] = []
    try:
        split.make_train_function()
        values = [value_of(variable) for variable in _variables_of(split)]
        kept = [(value, memory.to_host(value)) for value in values]
        split.train_on_batch(x, y, sample_weight)  # Builds the function if that is not done yet.
        for _ in range(_MAX_TRIES - 1):
            with contextlib.suppress(MissedOpsError):
                return _measure(split, x, y, sample_weight)
        return _measure(split, x, y, sample_weight)
    finally:
        split.reset_metrics()
        for variable, value in kept:
            memory.overwrite(variable, value)


def _variables_of(split: Any) -> list[Any]:
    """Every variable that a training step changes."""
    in_metrics = [variable for metric in split.metrics for variable in metric.variables]
    seed = global_seed_state()
    found = [*split.model.variables, *split.optimizer.variables, *in_metrics]
    return found if seed is None else [*found, seed]


def _measure(split: Any, x: Any, y: Any, sample_weight: Any) -> MeasuredStep:
    recorder = TraceRecorder()
    try:
        split.train_on_batch(x, y, sample_weight)
    finally:
        seconds = recorder.stop()
    trace = recorder.read()
    if trace is None:
        raise RuntimeError("The step could not be profiled: another profiler is running.")
    measured = MeasuredStep.from_trace(trace, split.schedule, seconds)
    if measured is None:
        raise RuntimeError(f"The step could not be profiled: {NO_STAGES}.")
    warn_of_short_stages(measured.costs, split.devices)
    return measured


def _times_of_kernels(trace: Any, schedule: Schedule) -> dict[Op, tuple[float, float]]:
    """From the first kernel of each op to its last, for stages on GPUs.

    There, a call has ended when its kernels are launched. Kernels do not know their micro-batch,
    but run in the order of the schedule, and equally many for each.
    """
    kernels: dict[tuple[str, int], list[Kernel]] = defaultdict(list)
    for kernel in kernels_in(trace):
        piece = piece_in(kernel.op)
        if piece is not None:
            kernels[piece].append(kernel)
    times = {}
    for (kind, stage), found in kernels.items():
        ops = [op for lane in schedule.lanes for op in lane if op[:2] == (kind, stage)]
        if not ops or len(found) % len(ops):
            continue
        found.sort(key=lambda kernel: kernel.begin)
        size = len(found) // len(ops)
        for index, op in enumerate(ops):
            own = found[index * size : (index + 1) * size]
            times[op] = own[0].begin, max(kernel.end for kernel in own)
    return times


def _times_of_calls(trace: Any) -> dict[Op, tuple[float, float]]:
    """Begin and end of each op's call, where the trace has both."""
    begins: dict[Op, float] = {}
    ends: dict[Op, float] = {}
    for name, time, is_begin in calls_in(trace):
        op = _op_of_call(name)
        if op is None:
            continue
        if is_begin:
            begins[op] = min(time, begins.get(op, time))
        else:
            ends[op] = max(time, ends.get(op, time))
    return {op: (begin, ends[op]) for op, begin in begins.items() if op in ends}


def _op_of_call(name: str) -> Op | None:
    """The op of the schedule that a call runs, or `None` if it is not the call of a stage."""
    scope, num_calls = _CALL.subn("", name)
    op = Op.from_scope(scope)
    return op if op is not None and num_calls and scope.endswith(op.scope) else None
