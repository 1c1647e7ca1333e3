"""Predicts when each op of a schedule runs, how long a step takes and what it keeps in memory.

A schedule has no times. Everything that depends on times (makespan, bubble, live micro-batches,
drawings) is computed here, for predicted timelines and for those measured on real devices.
"""

from __future__ import annotations

import heapq
import json
import math
import reprlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby

from keras_mgpu.blueprint.schedule import OP_KINDS, Op, Schedule

# Beyond this many ticks, a drawing gets coarser instead of wider.
MAX_TICKS = 1000

# The field of `Costs` for each kind of op.
COST_FIELDS = {"F": "forward", "R": "recompute", "B": "backward", "W": "weight"}


@dataclass(frozen=True)
class Costs:
    """The durations of the ops, in any unit of time.

    Each duration is a number for all stages, or a sequence with one number per stage.

    Args:
        forward: Duration of a forward op. Defaults to 1.
        backward: Duration of a backward op, including the weight gradients if the schedule has no
            `W` ops. Defaults to 1.
        weight: Duration of a `W` op, which computes weight gradients separately. Defaults to 1.
        recompute: Duration of a repeated forward op. Defaults to `forward`.
        transfer: Number, the time that outputs take to reach another device. Devices keep working
            in the meantime. Defaults to 0.
    """

    forward: float | Sequence[float] = 1
    backward: float | Sequence[float] = 1
    weight: float | Sequence[float] = 1
    recompute: float | Sequence[float] | None = None
    transfer: float = 0

    def __post_init__(self) -> None:
        if self.recompute is None:
            object.__setattr__(self, "recompute", self.forward)
        for field in (*COST_FIELDS.values(), "transfer"):
            value = getattr(self, field)
            if isinstance(value, Iterable) and not isinstance(value, str):
                # A list could still change after this check.
                value = tuple(value)
                object.__setattr__(self, field, value)
            self._check(field, value)

    @staticmethod
    def _check(field: str, value: object) -> None:
        for number in value if isinstance(value, tuple) else (value,):
            if isinstance(number, bool) or not isinstance(number, (int, float)):
                raise TypeError(
                    f"`{field}` must be a number or a sequence of numbers. "
                    f"Received: {field}={value!r}"
                )
            if not 0 <= number < math.inf:
                raise ValueError(
                    f"`{field}` must be finite and non-negative. Received: {field}={value!r}"
                )

    def per_stage(self, kind: str, num_stages: int) -> tuple[float, ...]:
        """Returns the durations of the ops of a kind, one number per stage."""
        field = COST_FIELDS[kind]
        value = getattr(self, field)
        numbers = value if isinstance(value, tuple) else (value,) * num_stages
        if len(numbers) != num_stages:
            raise ValueError(
                f"`{field}` must be a number or a sequence of {num_stages} numbers, one per stage. "
                f"Received: {field}={value}"
            )
        return numbers


_ONE_TICK_EACH = Costs()


@dataclass(frozen=True)
class Span:
    """The time at which an op ran, and its lane."""

    lane: int
    op: Op
    start: float
    end: float


@dataclass(frozen=True)
class StageBytes:
    """The memory that a micro-batch takes in each stage, in bytes.

    Args:
        activations: One number per stage: kept from the forward op, or from the repeated one, to
            the backward op.
        for_weights: One number per stage: kept from the backward op to the `W` op, if weight
            gradients are computed separately.
        inputs: One number per stage: kept from the forward op until it is repeated.
    """

    activations: Sequence[float]
    for_weights: Sequence[float]
    inputs: Sequence[float]

    def kept(self, stage: int, spans: Mapping[str, Span]) -> list[tuple[float, float, float]]:
        """Returns (start, end, bytes) of all that a micro-batch keeps in a stage."""
        forward, backward = spans["F"], spans.get("B", spans["F"])
        start = spans.get("R", forward).start
        kept = [(start, backward.end, self.activations[stage])]
        if "R" in spans:
            kept.append((forward.start, start, self.inputs[stage]))
        if "W" in spans:
            kept.append((backward.end, spans["W"].end, self.for_weights[stage]))
        return kept


@dataclass(frozen=True)
class Timeline:
    """The times of all ops of a step, predicted or measured.

    Args:
        num_lanes: Integer, the number of lanes, including lanes without any op.
        spans: Tuple of `Span`s, in any order.
    """

    num_lanes: int
    spans: tuple[Span, ...]

    def __post_init__(self) -> None:
        for span in self.spans:
            if not 0 <= span.lane < self.num_lanes or not span.start <= span.end:
                raise ValueError(
                    f"A span must be in one of the {self.num_lanes} lanes and must not end before "
                    f"it starts. Received: span={span}"
                )

    @property
    def makespan(self) -> float:
        """The time from the first start to the last end."""
        if not self.spans:
            return 0
        return max(span.end for span in self.spans) - min(span.start for span in self.spans)

    @property
    def bubble(self) -> float:
        """The share of idle time, over all lanes."""
        if not self.makespan:
            return 0.0
        busy = sum(span.end - span.start for span in self.spans)
        return 1 - busy / (self.num_lanes * self.makespan)

    @property
    def peak_live(self) -> tuple[int, ...]:
        """The largest number of micro-batches that are alive at once, for each stage.

        A micro-batch is alive from the start of its forward op, or of the repeated one, to the end
        of its last op in the stage.
        """
        runs = _runs(self.spans)
        num_stages = max((stage for stage, _ in runs), default=-1) + 1
        lives: list[list[tuple[float, float]]] = [[] for _ in range(num_stages)]
        for (stage, _), spans in runs.items():
            start = spans.get("R", spans["F"]).start
            lives[stage].append((start, max(span.end for span in spans.values())))
        return tuple(map(_most_at_once, lives))

    def peak_memory(self, sizes: StageBytes) -> tuple[float, ...]:
        """Returns the peak memory of each lane for what depends on the batch, in bytes.

        Args:
            sizes: The `StageBytes` of the model, as returned by `PipelineSplit.measure`.
        """
        changes: list[list[tuple[float, float]]] = [[] for _ in range(self.num_lanes)]
        for (stage, _), spans in _runs(self.spans).items():
            for start, end, size in sizes.kept(stage, spans):
                changes[spans["F"].lane] += [(start, size), (end, -size)]
        return tuple(
            max(accumulate(size for _, size in sorted(lane)), default=0) for lane in changes
        )

    def draw(self) -> str:
        """Returns a drawing with one row per lane and one column per tick.

        An op that takes several ticks is extended with dashes. An idle tick is a dot. Ops show
        their stage if a lane contains more than one.

        >>> from keras_mgpu.blueprint.named_schedules import one_f_one_b
        >>> print(replay(one_f_one_b(2, 3), Costs(backward=2)).draw())
        lane 0  F0 F1 .  .  B0--- F2 B1--- .  B2---
        lane 1  .  F0 B0--- F1 B1--- F2 B2--- .  .

        A tick is the longest time of which every op takes a whole number or, if that is too fine,
        the duration of the shortest op. Ops shorter than a thousandth of the whole may be missing.
        """
        tick = _tick(self)
        show_stage = _has_mixed_lane(self.spans)
        width = max((len(_label(span.op, show_stage)) for span in self.spans), default=1)
        margin = len(f"lane {self.num_lanes - 1}")
        return "\n".join(
            f"{f'lane {lane}':{margin}}  "
            + " ".join(_cells(_columns(self, lane, tick), show_stage, width)).rstrip()
            for lane in range(self.num_lanes)
        )

    def to_json(self) -> str:
        spans = [
            {"lane": span.lane, "op": str(span.op), "start": span.start, "end": span.end}
            for span in self.spans
        ]
        return json.dumps({"num_lanes": self.num_lanes, "spans": spans})

    @classmethod
    def from_json(cls, text: str) -> Timeline:
        try:
            fields = json.loads(text)
            spans = tuple(
                Span(span["lane"], Op.parse(span["op"]), span["start"], span["end"])
                for span in fields["spans"]
            )
            return cls(fields["num_lanes"], spans)
        except (KeyError, TypeError) as error:
            raise ValueError(
                "`text` must be the output of `Timeline.to_json`. "
                f"Received: text={reprlib.repr(text)}"
            ) from error


def replay(schedule: Schedule, costs: Costs = _ONE_TICK_EACH) -> Timeline:
    """Predicts when each op runs, if it starts as soon as its lane and its inputs allow.

    Example:

    >>> from keras_mgpu.blueprint.named_schedules import gpipe
    >>> timeline = replay(gpipe(num_stages=2, num_micro_batches=3))
    >>> print(timeline.draw())
    lane 0  F0 F1 F2 .  .  B0 B1 B2
    lane 1  .  F0 F1 F2 B0 B1 B2 .
    >>> timeline.bubble
    0.25

    Args:
        schedule: The `Schedule` to replay.
        costs: The `Costs` of the ops. Defaults to one tick per op.

    Returns:
        A `Timeline`.
    """
    durations = {kind: costs.per_stage(kind, schedule.num_stages) for kind in OP_KINDS}
    lane_of_stage = schedule.lane_of_stage
    free: list[float] = [0] * len(schedule.lanes)
    ends: dict[Op, float] = {}
    spans = []
    for op in schedule.order():
        lane = lane_of_stage[op.stage]
        arrivals = [
            ends[need] + costs.transfer * (lane_of_stage[need.stage] != lane)
            for need in schedule.needs(op)
        ]
        start = max([free[lane], *arrivals])
        free[lane] = ends[op] = start + durations[op.kind][op.stage]
        spans.append(Span(lane, op, start, ends[op]))
    return Timeline(len(schedule.lanes), tuple(spans))


def _runs(spans: Iterable[Span]) -> dict[tuple[int, int], dict[str, Span]]:
    """Maps each stage and micro-batch to the spans of its ops, by kind."""
    runs: dict[tuple[int, int], dict[str, Span]] = {}
    for span in spans:
        runs.setdefault((span.op.stage, span.op.micro_batch), {})[span.op.kind] = span
    return runs


def _most_at_once(lives: Iterable[tuple[float, float]]) -> int:
    most = 0
    ends: list[float] = []
    for start, end in sorted(lives):
        while ends and ends[0] <= start:
            heapq.heappop(ends)
        heapq.heappush(ends, end)
        most = max(most, len(ends))
    return most


def _tick(timeline: Timeline) -> float:
    durations = [span.end - span.start for span in timeline.spans if span.end > span.start]
    if not durations:
        return 1
    finest = timeline.makespan / MAX_TICKS
    times = [time for span in timeline.spans for time in (span.start, span.end)]
    first = min(times)
    if all(float(time).is_integer() for time in times):
        common = math.gcd(*(int(time - first) for time in times))
        if common >= finest:
            return common
    return max(min(durations), finest)


def _columns(timeline: Timeline, lane: int, tick: float) -> list[Op | None]:
    """Returns, for each tick, the op that runs in the middle of it.

    No op of at least one tick can fall between two middles, and rounding errors in the times do not
    matter.
    """
    first = min((span.start for span in timeline.spans), default=0)
    columns: list[Op | None] = [None] * _num_middles(timeline.makespan, tick)
    for span in timeline.spans:
        if span.lane == lane:
            start = _num_middles(span.start - first, tick)
            end = _num_middles(span.end - first, tick)
            columns[start:end] = [span.op] * (end - start)
    return columns


def _num_middles(time: float, tick: float) -> int:
    """Returns the number of ticks whose middle is before `time`."""
    return math.ceil(time / tick - 0.5)


def _cells(columns: Iterable[Op | None], show_stage: bool, width: int) -> Iterable[str]:
    for op, ticks in groupby(columns):
        count = len(list(ticks))
        if op is None:
            yield from [f"{'.':{width}}"] * count
        else:
            label = _label(op, show_stage).ljust(width if count == 1 else 0)
            yield label.ljust(count * (width + 1) - 1, "-")


def _label(op: Op, show_stage: bool) -> str:
    return str(op) if show_stage else f"{op.kind}{op.micro_batch}"


def _has_mixed_lane(spans: Iterable[Span]) -> bool:
    """Whether any lane contains more than one stage."""
    stages: dict[int, int] = {}
    return any(stages.setdefault(span.lane, span.op.stage) != span.op.stage for span in spans)
