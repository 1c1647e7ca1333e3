"""The order in which each device runs the ops of a pipeline.

A schedule is an order without times. The same value is used to run a step, to predict it and to
draw it, so that the three always agree. `named_schedules.py` creates the well-known schedules.
"""

from __future__ import annotations

import json
import re
import reprlib
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

# The kinds of ops, in the order in which a stage runs them for a micro-batch, with the word by
# which names of scopes and reports call each.
KIND_WORDS = {"F": "forward", "R": "recompute", "B": "backward", "W": "weights"}
OP_KINDS = tuple(KIND_WORDS)


class Op(NamedTuple):
    """One unit of work: a pass of a micro-batch through a stage.

    `kind` is `"F"` (forward), `"R"` (forward again, if its activations were not kept), `"B"`
    (backward) or `"W"` (gradients of the weights, if they are computed separately).

    >>> str(Op("F", stage=2, micro_batch=0))
    '2F0'
    >>> Op.parse("2F0")
    Op(kind='F', stage=2, micro_batch=0)
    >>> Op.parse("2F0").scope
    'stage_2/forward/micro_batch_0'
    """

    kind: str
    stage: int
    micro_batch: int

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}{self.micro_batch}"

    @property
    def scope(self) -> str:
        """The name scope it runs under, by which profiles and errors find it again."""
        return f"{stage_scope(self.stage)}/{KIND_WORDS[self.kind]}/micro_batch_{self.micro_batch}"

    @classmethod
    def from_scope(cls, name: str) -> Op | None:
        """The op that a name belongs to, or `None` if it lies outside every op's scope."""
        match = re.search(r"(?:^|/)stage_(\d+)/([a-z]+)/micro_batch_(\d+)(?:/|$)", name)
        kinds = {word: kind for kind, word in KIND_WORDS.items()}
        if match is None or match[2] not in kinds:
            return None
        return cls(kinds[match[2]], int(match[1]), int(match[3]))

    @classmethod
    def parse(cls, text: str) -> Op:
        is_text = isinstance(text, str)
        match = re.fullmatch(r"([0-9]+)([FRBW])([0-9]+)", text) if is_text else None
        if match is None:
            raise ValueError(
                "An op must consist of its stage, one of F, R, B and W, and its micro-batch, such "
                f"as '2F0'. Received: text={text!r}"
            )
        stage, kind, micro_batch = match.groups()
        return cls(kind, int(stage), int(micro_batch))


def stage_scope(stage: int) -> str:
    """The name scope of everything that a stage runs."""
    return f"stage_{stage}"


def piece_name(stage: int, word: str) -> str:
    """The name of the function of a stage for a kind of op, given by its word.

    >>> piece_name(1, "backward")
    'stage_1_backward'
    """
    return f"stage_{stage}_{word}"


def piece_in(text: str) -> tuple[str, int] | None:
    """The kind and the stage of the function that a name begins with, or `None`.

    >>> piece_in("stage_1_backward/stage_1/dense/MatMul")
    ('B', 1)
    """
    match = re.match(r"stage_(\d+)_([a-z]+)/", text)
    kinds = {word: kind for kind, word in KIND_WORDS.items()}
    return None if match is None or match[2] not in kinds else (kinds[match[2]], int(match[1]))


def stage_in(text: str) -> int | None:
    """The stage of the first name in a text, such as an error's, that lies in a stage's scope."""
    match = re.search(r"\bstage_(\d+)/", text)
    return None if match is None else int(match[1])


@dataclass(frozen=True)
class Schedule:
    """The ops of each device, in the order in which they run.

    Example:

    >>> lanes = (
    ...     (Op("F", 0, 0), Op("B", 0, 0)),
    ...     (Op("F", 1, 0), Op("B", 1, 0)),
    ... )
    >>> Schedule("custom", num_stages=2, num_micro_batches=1, lanes=lanes).has_backward
    True

    Args:
        name: String, the name of the schedule.
        num_stages: Integer, the number of stages.
        num_micro_batches: Integer, the number of micro-batches per batch.
        lanes: Tuple with one entry per device: a tuple of its ops, in order. A lane may contain
            several stages, but each stage must be in a single lane. All forward ops are required.
            Backward ops must be present for all stages and micro-batches or for none, and so must
            the ops for weight gradients. A stage recomputes all micro-batches or none.

    Raises:
        ValueError: If an op is missing, unknown or repeated, if a stage is in two lanes, or if an
            op can never start. The message shows the lanes with the offending ops in brackets.
    """

    name: str
    num_stages: int
    num_micro_batches: int
    lanes: tuple[tuple[Op, ...], ...]

    def __post_init__(self) -> None:
        check_counts(self.num_stages, self.num_micro_batches)
        _check_ops(self)
        _check_lanes_of_stages(self)
        _check_order(self)

    @property
    def lane_of_stage(self) -> tuple[int, ...]:
        """For each stage, the index of the lane that holds it."""
        lanes = {op.stage: index for index, lane in enumerate(self.lanes) for op in lane}
        return tuple(lanes[stage] for stage in range(self.num_stages))

    @property
    def has_backward(self) -> bool:
        """Whether the schedule can train. Without backward ops it serves for inference only."""
        return any(op.kind == "B" for lane in self.lanes for op in lane)

    @cached_property
    def recomputed_stages(self) -> frozenset[int]:
        """The stages whose forward op runs again before each backward op."""
        return frozenset(op.stage for lane in self.lanes for op in lane if op.kind == "R")

    @cached_property
    def split_stages(self) -> frozenset[int]:
        """Stages in which the gradients of the weights are ops of their own."""
        return frozenset(op.stage for lane in self.lanes for op in lane if op.kind == "W")

    def kinds_of(self, stage: int) -> frozenset[str]:
        """Returns the kinds of ops of a stage."""
        return frozenset(op.kind for lane in self.lanes for op in lane if op.stage == stage)

    def needs(self, op: Op) -> tuple[Op, ...]:
        """Returns the ops whose results `op` depends on."""
        kind, stage, micro_batch = op
        if kind == "W":
            return (Op("B", stage, micro_batch),)
        if kind == "R":
            return (Op("F", stage, micro_batch),)
        if kind == "F":
            return (Op("F", stage - 1, micro_batch),) if stage else ()
        before = Op("R" if stage in self.recomputed_stages else "F", stage, micro_batch)
        if stage == self.num_stages - 1:
            return (before,)
        return (before, Op("B", stage + 1, micro_batch))

    def order(self) -> tuple[Op, ...]:
        """Returns all ops in an order in which a single worker could run them.

        The order proceeds in ticks. In each tick, every lane runs its next op if all ops it
        depends on have run in earlier ticks.
        """
        return _run(self)[0]

    def to_json(self) -> str:
        return json.dumps(
            {
                "name": self.name,
                "num_stages": self.num_stages,
                "num_micro_batches": self.num_micro_batches,
                "lanes": [[str(op) for op in lane] for lane in self.lanes],
            }
        )

    @classmethod
    def parse(cls, lanes: Iterable[str | Iterable[str | Op]], name: str = "custom") -> Schedule:
        """Creates a schedule from lanes written as text, or as sequences of ops.

        >>> Schedule.parse(["0F0 0F1 0B0 0B1", "1F0 1B0 1F1 1B1"]).num_micro_batches
        2

        Args:
            lanes: One entry per device: its ops in order, such as `"0F0 0F1 0B0 0B1"`.
            name: String, the name of the schedule. Defaults to `"custom"`.
        """
        parsed = tuple(tuple(_parse_lane(lane)) for lane in lanes)
        ops = [op for lane in parsed for op in lane]
        if not ops:
            raise ValueError(f"A schedule must contain at least one op. Received: lanes={lanes!r}")
        num_stages = 1 + max(op.stage for op in ops)
        return cls(name, num_stages, 1 + max(op.micro_batch for op in ops), parsed)

    @classmethod
    def from_json(cls, text: str) -> Schedule:
        try:
            fields = json.loads(text)
            lanes = tuple(tuple(map(Op.parse, lane)) for lane in fields["lanes"])
            return cls(fields["name"], fields["num_stages"], fields["num_micro_batches"], lanes)
        except (KeyError, TypeError) as error:
            raise ValueError(
                "`text` must be the output of `Schedule.to_json`. "
                f"Received: text={reprlib.repr(text)}"
            ) from error


def _run(schedule: Schedule) -> tuple[tuple[Op, ...], list[int]]:
    """Runs the lanes as far as possible. Returns the ops in order, and their number per lane."""
    order: list[Op] = []
    done: set[Op] = set()
    heads = [0] * len(schedule.lanes)
    while True:
        ready = [
            index
            for index, lane in enumerate(schedule.lanes)
            if heads[index] < len(lane) and done.issuperset(schedule.needs(lane[heads[index]]))
        ]
        if not ready:
            return tuple(order), heads
        tick = [schedule.lanes[index][heads[index]] for index in ready]
        order += tick
        done.update(tick)
        for index in ready:
            heads[index] += 1


def check_counts(num_stages: int, num_micro_batches: int) -> None:
    for name, value in (("num_stages", num_stages), ("num_micro_batches", num_micro_batches)):
        # `type` rather than `isinstance`, because True is an int, too.
        if type(value) is not int:
            raise TypeError(f"`{name}` must be an integer. Received: {name}={value!r}")
        if value < 1:
            raise ValueError(f"`{name}` must be at least 1. Received: {name}={value}")


def _check_ops(schedule: Schedule) -> None:
    places = _places(schedule)
    expected = _expected_ops(schedule)
    unknown = [place for op, found in places.items() if op not in expected for place in found]
    if unknown:
        what = f"{schedule.num_stages} stages and {schedule.num_micro_batches} micro-batches"
        raise ValueError(_fault(schedule, f"has ops that do not exist for {what}", unknown))
    repeated = [place for found in places.values() for place in found[1:]]
    if repeated:
        raise ValueError(_fault(schedule, "repeats ops", repeated))
    missing = [op for op in expected if op not in places]
    if missing:
        raise ValueError(_fault(schedule, "is missing ops", (), missing))


def _places(schedule: Schedule) -> dict[Op, list[tuple[int, int]]]:
    """Maps each op to all its positions, as (lane, index)."""
    places: dict[Op, list[tuple[int, int]]] = {}
    for row, lane in enumerate(schedule.lanes):
        for column, op in enumerate(lane):
            places.setdefault(op, []).append((row, column))
    return places


def _expected_ops(schedule: Schedule) -> dict[Op, None]:
    """Returns every required op, as the keys of a dict to keep their order."""
    present = {op.kind for lane in schedule.lanes for op in lane}
    # Each kind requires those before it: a W needs its B, and a B its F.
    last = max((index for index, kind in enumerate(OP_KINDS) if kind in present), default=0)
    return {
        Op(kind, stage, micro_batch): None
        for kind in OP_KINDS[: last + 1]
        for stage in range(schedule.num_stages)
        if kind != "R" or stage in schedule.recomputed_stages
        for micro_batch in range(schedule.num_micro_batches)
    }


def _parse_lane(lane: str | Iterable[str | Op]) -> Iterable[Op]:
    if not isinstance(lane, Iterable):
        raise TypeError(
            "A lane must contain the ops of one device, such as '0F0 0F1 0B0 0B1'. "
            f"Received: {lane!r} (of type {type(lane).__name__})"
        )
    for op in lane.split() if isinstance(lane, str) else lane:
        yield op if isinstance(op, Op) else Op.parse(op)


def _check_lanes_of_stages(schedule: Schedule) -> None:
    lanes = schedule.lane_of_stage
    misplaced = [
        (row, column)
        for row, lane in enumerate(schedule.lanes)
        for column, op in enumerate(lane)
        if lanes[op.stage] != row
    ]
    if misplaced:
        raise ValueError(_fault(schedule, "has a stage in several lanes", misplaced))


def _check_order(schedule: Schedule) -> None:
    order, heads = _run(schedule)
    stuck = [(row, head) for row, head in enumerate(heads) if head < len(schedule.lanes[row])]
    if not stuck:
        return
    waits = []
    for row, head in stuck:
        op = schedule.lanes[row][head]
        needs = " and ".join(str(need) for need in schedule.needs(op) if need not in order)
        waits.append(f"{op} waits for {needs}")
    raise ValueError(_fault(schedule, f"can never finish, because {', '.join(waits)}", stuck))


def _fault(
    schedule: Schedule,
    what: str,
    marked: Collection[tuple[int, int]],
    missing: Sequence[Op] = (),
) -> str:
    return (
        f"The schedule {schedule.name!r} {what} (shown in brackets). Received: lanes=\n"
        f"{_grid(schedule.lanes, marked, missing)}"
    )


def _grid(
    lanes: Sequence[Sequence[Op]], marked: Collection[tuple[int, int]], missing: Sequence[Op]
) -> str:
    rows = [
        (f"lane {row}", [(op, (row, column) in marked) for column, op in enumerate(lane)])
        for row, lane in enumerate(lanes)
    ]
    if missing:
        rows.append(("missing", [(op, True) for op in missing]))
    title_width = max(len(title) for title, _ in rows)
    width = max((len(str(op)) for _, ops in rows for op, _ in ops), default=0) + 2
    return "\n".join(
        f"{title:{title_width}} {''.join(_cell(op, mark, width) for op, mark in ops)}".rstrip()
        for title, ops in rows
    )


def _cell(op: Op, mark: bool, width: int) -> str:
    return f"{f'[{op}]' if mark else f' {op} ':{width}}"
