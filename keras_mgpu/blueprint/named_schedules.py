"""The well-known schedules by name, and functions that transform any schedule."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace

from keras_mgpu.blueprint.schedule import Op, Schedule, check_counts


def gpipe(num_stages: int, num_micro_batches: int) -> Schedule:
    """All forward passes, then all backward passes. Keeps every micro-batch alive at once.

    >>> from keras_mgpu.blueprint.timeline import replay
    >>> print(replay(gpipe(3, 4)).draw())
    lane 0  F0 F1 F2 F3 .  .  .  .  B0 B1 B2 B3
    lane 1  .  F0 F1 F2 F3 .  .  B0 B1 B2 B3 .
    lane 2  .  .  F0 F1 F2 F3 B0 B1 B2 B3 .  .
    """

    # Backward ops are in the same order as in 1F1B, so that gradients are summed in the same order
    # and both schedules give bit-identical results.
    def lane(stage: int) -> Iterable[Op]:
        return [Op(kind, stage, index) for kind in "FB" for index in range(num_micro_batches)]

    return _make_lanes("gpipe", num_stages, num_micro_batches, lane)


def one_f_one_b(num_stages: int, num_micro_batches: int) -> Schedule:
    """One forward pass, one backward pass (1F1B): as fast as GPipe, with few live micro-batches.

    Each stage first runs one forward pass for each stage from it to the last one. It then
    alternates backward and forward passes, so that no more micro-batches are alive at once.

    >>> from keras_mgpu.blueprint.timeline import replay
    >>> print(replay(one_f_one_b(3, 4)).draw())
    lane 0  F0 F1 F2 .  .  B0 F3 B1 .  B2 .  B3
    lane 1  .  F0 F1 .  B0 F2 B1 F3 B2 .  B3 .
    lane 2  .  .  F0 B0 F1 B1 F2 B2 F3 B3 .  .
    """

    def lane(stage: int) -> Iterable[Op]:
        forward = [Op("F", stage, index) for index in range(num_micro_batches)]
        backward = [Op("B", stage, index) for index in range(num_micro_batches)]
        return _in_turns(forward, backward, ahead=num_stages - stage)

    return _make_lanes("1f1b", num_stages, num_micro_batches, lane)


def interleaved(num_stages: int, num_micro_batches: int, num_lanes: int) -> Schedule:
    """1F1B with several stages per device, which divides the bubble by their number.

    Stage 0 is in lane 0, stage 1 in lane 1 and so on, round by round. A device runs a few
    micro-batches through its first stage, then the same ones through its next stage. This needs
    more transfers between devices, and keeps more micro-batches alive.

    >>> from keras_mgpu.blueprint.timeline import replay
    >>> print(replay(interleaved(4, 4, num_lanes=2)).draw())
    lane 0  0F0 0F1 2F0 2F1 0F2 2B0 0F3 2B1 2F2 0B0 2F3 0B1 .   2B2 .   2B3 0B2 0B3
    lane 1  .   1F0 1F1 3F0 3B0 3F1 3B1 1F2 1B0 1F3 1B1 3F2 3B2 3F3 3B3 1B2 1B3 .
    """
    check_counts(num_stages, num_micro_batches)
    if num_stages % num_lanes:
        raise ValueError(
            "The number of stages of an interleaved schedule must be a multiple of the number of "
            f"devices. Received: num_stages={num_stages}, num_lanes={num_lanes}"
        )
    groups = _even_groups(num_micro_batches, num_lanes)
    rounds = range(num_stages // num_lanes)

    def lane(index: int) -> Iterable[Op]:
        stages = [round_ * num_lanes + index for round_ in rounds]
        forward = [Op("F", stage, i) for group in groups for stage in stages for i in group]
        backward = [Op("B", stage, i) for group in groups for stage in stages[::-1] for i in group]
        ahead = (len(stages) - 1) * len(groups[0]) + 2 * (num_lanes - 1 - index) + 1
        return _in_turns(forward, backward, ahead)

    lanes = tuple(tuple(lane(index)) for index in range(num_lanes))
    return Schedule("interleaved", num_stages, num_micro_batches, lanes)


def zero_bubble(num_stages: int, num_micro_batches: int) -> Schedule:
    """1F1B that computes weight gradients while a device would be idle (ZB-H1).

    Other devices wait only for the gradients of inputs, so these come first. Stage s postpones the
    weight gradients of s micro-batches: no device keeps more micro-batches alive than the first
    one in 1F1B, and a third of its bubble remains if all ops take the same time.

    >>> from keras_mgpu.blueprint.timeline import replay
    >>> print(replay(zero_bubble(3, 4)).draw())
    lane 0  F0 F1 F2 .  .  B0 W0 F3 B1 W1 B2 W2 B3 W3
    lane 1  .  F0 F1 .  B0 F2 B1 W0 F3 B2 W1 B3 W2 W3
    lane 2  .  .  F0 B0 F1 B1 F2 B2 W0 F3 B3 W1 W2 W3
    """

    def lane(stage: int) -> Iterable[Op]:
        in_turns = one_f_one_b(num_stages, num_micro_batches).lanes[stage]
        weights = [Op("W", stage, index) for index in range(num_micro_batches)]
        for op, following in zip(in_turns, (*in_turns[1:], None)):
            yield op
            is_draining = following is not None and following.kind == "B"
            if op.kind == "B" and following and (is_draining or op.micro_batch >= stage):
                yield weights.pop(0)
        yield from weights

    return _make_lanes("zero_bubble", num_stages, num_micro_batches, lane)


def recomputing(schedule: Schedule, stages: Collection[int]) -> Schedule:
    """Returns the schedule with the forward pass of some stages repeated before each backward pass.

    The repeated op depends only on its own lane, so it runs while the device waits for a gradient.

    >>> from keras_mgpu.blueprint.timeline import replay
    >>> print(replay(recomputing(one_f_one_b(3, 4), [0, 1])).draw())
    lane 0  F0 F1 F2 R0 .  B0 F3 R1 B1 R2 .  B2 R3 B3
    lane 1  .  F0 F1 R0 B0 F2 R1 B1 F3 R2 B2 R3 B3 .
    lane 2  .  .  F0 B0 F1 B1 F2 B2 .  F3 B3 .  .  .
    """
    added = frozenset(stages) - schedule.recomputed_stages

    def lane(ops: Iterable[Op]) -> Iterable[Op]:
        for op in ops:
            if op.kind == "B" and op.stage in added:
                yield op._replace(kind="R")
            yield op

    return replace(schedule, lanes=tuple(tuple(lane(ops)) for ops in schedule.lanes))


def forwards_only(schedule: Schedule) -> Schedule:
    """Returns only the forward ops of a schedule, for evaluation and prediction.

    >>> from keras_mgpu.blueprint.timeline import replay
    >>> print(replay(forwards_only(one_f_one_b(3, 4))).draw())
    lane 0  F0 F1 F2 F3 .  .
    lane 1  .  F0 F1 F2 F3 .
    lane 2  .  .  F0 F1 F2 F3
    """
    lanes = tuple(tuple(op for op in lane if op.kind == "F") for lane in schedule.lanes)
    return replace(schedule, name=f"{schedule.name}, forwards only", lanes=lanes)


def forwards_first(schedule: Schedule) -> Schedule:
    """Returns the schedule with all forward ops first, for losses that need all outputs at once.

    >>> from keras_mgpu.blueprint.timeline import replay
    >>> print(replay(forwards_first(one_f_one_b(2, 3))).draw())
    lane 0  F0 F1 F2 .  .  B0 B1 B2
    lane 1  .  F0 F1 F2 B0 B1 B2 .
    """
    lanes = tuple(tuple(sorted(lane, key=lambda op: op.kind != "F")) for lane in schedule.lanes)
    return replace(schedule, name=f"{schedule.name}, forwards first", lanes=lanes)


SCHEDULES: dict[str, Callable[..., Schedule]] = {
    "gpipe": gpipe,
    "1f1b": one_f_one_b,
    "interleaved": interleaved,
    "zero_bubble": zero_bubble,
}


def make(
    name: str, num_stages: int, num_micro_batches: int, num_lanes: int | None = None
) -> Schedule:
    """Returns the training schedule called `name`, one of the keys of `SCHEDULES`.

    Args:
        name: String, the name of the schedule.
        num_stages: Integer, the number of stages.
        num_micro_batches: Integer, the number of micro-batches per batch.
        num_lanes: Integer, the number of devices. Only used by `"interleaved"`. Defaults to one
            device per stage.
    """
    if name not in SCHEDULES:
        raise ValueError(
            f"`schedule` must be one of {', '.join(map(repr, SCHEDULES))}. "
            f"Received: schedule={name!r}"
        )
    if name == "interleaved":
        return interleaved(num_stages, num_micro_batches, num_lanes or num_stages)
    return SCHEDULES[name](num_stages, num_micro_batches)


def _in_turns(forward: Sequence[Op], backward: Sequence[Op], ahead: int) -> list[Op]:
    """Returns `ahead` forward ops, then backward and forward ops in turn, then the rest."""
    ahead = min(ahead, len(forward))
    steady = [op for pair in zip(backward, forward[ahead:], strict=False) for op in pair]
    return [*forward[:ahead], *steady, *backward[len(forward) - ahead :]]


def _even_groups(num: int, at_least: int) -> list[range]:
    """Divides `range(num)` into groups of at least `at_least`, as even as possible."""
    num_groups = max(1, num // at_least)
    size, rest = divmod(num, num_groups)
    starts = [index * size + min(index, rest) for index in range(num_groups + 1)]
    return [range(start, end) for start, end in itertools.pairwise(starts)]


def _make_lanes(
    name: str, num_stages: int, num_micro_batches: int, lane: Callable[[int], Iterable[Op]]
) -> Schedule:
    """Returns the schedule with one lane per stage."""
    check_counts(num_stages, num_micro_batches)
    lanes = tuple(tuple(lane(stage)) for stage in range(num_stages))
    return Schedule(name, num_stages, num_micro_batches, lanes)
