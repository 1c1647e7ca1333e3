"""Replays a schedule with costs, to tell how long it takes and what it keeps alive.

A schedule knows no time. What follows from time (makespan, bubble, live micro-batches, the drawing)
is worked out here, and a timeline measured on real devices has the same form as a predicted one.
"""

from __future__ import annotations

import heapq
import json
import math
import reprlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby

from keras_mgpu.blueprint.schedule import KINDS, Op, Schedule

# Beyond this many ticks a drawing gets coarser instead of wider.
MAX_TICKS = 1000


FIELDS = {"F": "forward", "R": "recompute", "B": "backward", "W": "weight"}


@dataclass(frozen=True)
class Costs:
    """How long the ops of each kind take.

    Args:
        forward: One number for all stages, or a sequence of one number a stage. Defaults to 1.
        backward: Likewise for the backward; the whole of it where the schedule has no `W` ops.
            Defaults to 1.
        weight: Likewise for the gradients of the weights, where they are ops of their own.
            Defaults to 1.
        recompute: Likewise for a forward that runs again. Defaults to what a forward takes.
        transfer: How long what a stage gives is on its way to a stage on another device. Devices
            go on working meanwhile. Defaults to 0.
    """

    forward: float | Sequence[float] = 1
    backward: float | Sequence[float] = 1
    weight: float | Sequence[float] = 1
    recompute: float | Sequence[float] | None = None
    transfer: float = 0

    def __post_init__(self) -> None:
        if self.recompute is None:
            object.__setattr__(self, "recompute", self.forward)
        for field in (*FIELDS.values(), "transfer"):
            value = getattr(self, field)
            if isinstance(value, Iterable) and not isinstance(value, str):
                # A list could still change after it was checked.
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
                    f"`{field}` must be finite and not negative. Received: {field}={value!r}"
                )

    def per_stage(self, kind: str, num_stages: int) -> tuple[float, ...]:
        """Returns what an op of `kind` costs, one number a stage."""
        field = FIELDS[kind]
        value = getattr(self, field)
        numbers = value if isinstance(value, tuple) else (value,) * num_stages
        if len(numbers) != num_stages:
            raise ValueError(
                f"`{field}` must be one number, or one number a stage, {num_stages} in all. "
                f"Received: {field}={value}"
            )
        return numbers


_ONE_TICK_EACH = Costs()


@dataclass(frozen=True)
class Span:
    """When and where one op ran."""

    lane: int
    op: Op
    start: float
    end: float


@dataclass(frozen=True)
class Sizes:
    """What a stage keeps of a micro-batch, one number a stage.

    Args:
        activations: From the forward, or from the one that runs again, to the backward.
        for_weights: The part of it, and of what the backward made, that is kept for the gradients
            of the weights, where those are ops of their own.
        inputs: What is kept from the forward until it runs again.
    """

    activations: Sequence[float]
    for_weights: Sequence[float]
    inputs: Sequence[float]

    def kept(self, stage: int, spans: Mapping[str, Span]) -> list[tuple[float, float, float]]:
        """From when to when a micro-batch keeps how much in a stage, by the spans of its ops."""
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
    """The spans of all ops of a step, predicted or measured.

    Args:
        num_lanes: Number of lanes, those without any span counted in.
        spans: The spans, in any order.
    """

    num_lanes: int
    spans: tuple[Span, ...]

    def __post_init__(self) -> None:
        for span in self.spans:
            if not 0 <= span.lane < self.num_lanes or not span.start <= span.end:
                raise ValueError(
                    f"A span must lie in one of the {self.num_lanes} lanes and must not end before "
                    f"it starts. Received: span={span}"
                )

    @property
    def makespan(self) -> float:
        """Time from the first start to the last end."""
        if not self.spans:
            return 0
        return max(span.end for span in self.spans) - min(span.start for span in self.spans)

    @property
    def bubble(self) -> float:
        """Share of the time, over all lanes, in which nothing runs."""
        if not self.makespan:
            return 0.0
        busy = sum(span.end - span.start for span in self.spans)
        return 1 - busy / (self.num_lanes * self.makespan)

    @property
    def peak_live(self) -> tuple[int, ...]:
        """For each stage, the largest number of micro-batches alive at once.

        A stage has to keep a micro-batch's activations from the start of its forward, or of the
        one that runs again, to the end of its last op: of the weight gradient, or else of the
        backward, or else of the forward.
        """
        runs = _runs(self.spans)
        num_stages = max((stage for stage, _ in runs), default=-1) + 1
        lives: list[list[tuple[float, float]]] = [[] for _ in range(num_stages)]
        for (stage, _), spans in runs.items():
            start = spans.get("R", spans["F"]).start
            lives[stage].append((start, max(span.end for span in spans.values())))
        return tuple(map(_most_at_once, lives))

    def peak_memory(self, sizes: Sizes) -> tuple[float, ...]:
        """For each lane, the most that its stages keep at once of what depends on the batch."""
        changes: list[list[tuple[float, float]]] = [[] for _ in range(self.num_lanes)]
        for (stage, _), spans in _runs(self.spans).items():
            for start, end, size in sizes.kept(stage, spans):
                changes[spans["F"].lane] += [(start, size), (end, -size)]
        return tuple(
            max(accumulate(size for _, size in sorted(lane)), default=0) for lane in changes
        )

    def draw(self) -> str:
        """Returns a drawing of one row a lane and one column a tick.

        An op that takes several ticks is drawn out with dashes, an idle tick is a dot. The stage is
        named where a lane holds more than one.

        >>> from keras_mgpu.blueprint.named_schedules import one_f_one_b
        >>> print(replay(one_f_one_b(2, 3), Costs(backward=2)).draw())
        lane 0  F0 F1 .  .  B0--- F2 B1--- .  B2---
        lane 1  .  F0 B0--- F1 B1--- F2 B2--- .  .

        A tick is the longest in which every op takes a whole number of them or, where that would be
        too fine, the shortest op. Ops that are shorter than a thousandth of the whole may be lost.
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
                f"`text` is not the JSON of a Timeline. Received: text={reprlib.repr(text)}"
            ) from error


def replay(schedule: Schedule, costs: Costs = _ONE_TICK_EACH) -> Timeline:
    """Returns when each op runs if it starts as soon as its lane and its inputs allow.

    Args:
        schedule: The schedule to replay.
        costs: How long the ops take. Defaults to one tick each.
    """
    durations = {kind: costs.per_stage(kind, schedule.num_stages) for kind in KINDS}
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
    """For each stage and micro-batch, the spans of its ops by their kinds."""
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

    No op of a tick's length or more can slip between two middles, and rounding errors in the times
    do no harm.
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
    """Counts the ticks whose middle lies before `time`."""
    return math.ceil(time / tick - 0.5)


def _cells(columns: Iterable[Op | None], show_stage: bool, width: int) -> Iterable[str]:
    for op, ticks in groupby(columns):
        count = len(list(ticks))
        if op is None:
            yield from [f"{'.':{width}}"] * count
        else:
            drawn_out = _label(op, show_stage).ljust(width if count == 1 else 0)
            yield drawn_out.ljust(count * (width + 1) - 1, "-")


def _label(op: Op, show_stage: bool) -> str:
    return str(op) if show_stage else f"{op.kind}{op.micro_batch}"


def _has_mixed_lane(spans: Iterable[Span]) -> bool:
    """Whether some lane holds more than one stage."""
    stages: dict[int, int] = {}
    return any(stages.setdefault(span.lane, span.op.stage) != span.op.stage for span in spans)
