"""From what a user asks for to a plan and a schedule: which layers where, and in which order."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import keras

from keras_mgpu.blueprint import named_schedules, partition
from keras_mgpu.blueprint.partition import PartitionPlan
from keras_mgpu.blueprint.schedule import Schedule
from keras_mgpu.blueprint.timeline import replay
from keras_mgpu.model import layer_calls
from keras_mgpu.model.layer_calls import LayerCalls
from keras_mgpu.model.layer_costs import layer_costs
from keras_mgpu.pipeline import validation
from keras_mgpu.system import devices as device_names

MICRO_BATCHES_PER_DEVICE = 4  # Leaves a bubble of about a fifth.


def calls_of(model: keras.Model) -> LayerCalls:
    """The calls of a model that can be split, or the error that says why it cannot."""
    validation.check_model(model)
    calls = layer_calls.from_model(model)
    if calls is None:
        raise validation.not_splittable(model)
    return calls


def devices_of_stages(
    devices: Sequence[str] | None, stages_per_device: int | None, schedule: Any
) -> tuple[str, ...]:
    """One device a stage: as named, or round after round."""
    names = resolve_devices(devices)
    if stages_per_device is not None and (
        type(stages_per_device) is not int or stages_per_device < 1
    ):
        raise ValueError(
            "`stages_per_device` must be an integer of at least 1. "
            f"Received: stages_per_device={stages_per_device!r}"
        )
    is_repeated = len(set(names)) < len(names)
    if is_repeated and stages_per_device not in (None, 1):
        raise ValueError(
            "`devices` names a device more than once, which says already how many stages it has. "
            f"Leave `stages_per_device` out. Received: devices={list(names)}, "
            f"stages_per_device={stages_per_device}"
        )
    if stages_per_device is None:
        stages_per_device = 2 if schedule == "interleaved" and not is_repeated else 1
    return names * stages_per_device


def resolve_devices(devices: Sequence[str] | None) -> tuple[str, ...]:
    if devices is not None:
        names = device_names.resolve(devices)
        if not names:
            raise ValueError("`devices` must name at least one device. Received: devices=[]")
        return names
    names = tuple(device_names.gpus())
    if not names:
        raise ValueError(
            "There is no GPU to split the model over. These devices are there: "
            f"{', '.join(device_names.available())}. Name devices, or make logical ones with "
            "`devices=keras_mgpu.logical_devices(2)`. Received: devices=None"
        )
    return names


def make_schedule(
    schedule: str | Schedule | Sequence[Any],
    devices: Sequence[str],
    micro_batches: int | None,
    recompute: bool | str | Collection[int],
) -> Schedule:
    """The schedule that a name, a value or written lanes stand for, with recomputation in it."""
    lanes = list(dict.fromkeys(devices))
    if isinstance(schedule, str):
        num = micro_batches or _choose_micro_batches(len(lanes))
        if schedule == "interleaved":
            _check_rounds(devices, lanes)
        found = named_schedules.make(schedule, len(devices), num, len(lanes))
    else:
        found = schedule if isinstance(schedule, Schedule) else Schedule.parse(schedule)
        _check_own(found, devices, micro_batches)
    return named_schedules.recomputing(found, _stages_to_recompute(recompute, found))


def _choose_micro_batches(num_devices: int) -> int:
    return MICRO_BATCHES_PER_DEVICE * num_devices if num_devices > 1 else 1


def _check_rounds(devices: Sequence[str], lanes: Sequence[str]) -> None:
    rounds = [device for _ in range(len(devices) // len(lanes)) for device in lanes]
    if list(devices) != rounds:
        raise ValueError(
            "Interleaved stages go over the devices round by round, such as "
            '`devices=["/GPU:0", "/GPU:1", "/GPU:0", "/GPU:1"]`; or name each device once and '
            f"say `stages_per_device=2`. Received: devices={list(devices)}"
        )


def _check_own(schedule: Schedule, devices: Sequence[str], micro_batches: int | None) -> None:
    if not schedule.has_backward:
        raise ValueError(
            f"The schedule '{schedule.name}' has no backward ops, so it cannot train. "
            f"Received: schedule={schedule!r}"
        )
    if schedule.num_stages != len(devices):
        raise ValueError(
            f"The schedule '{schedule.name}' has {schedule.num_stages} stage(s) and needs as many "
            f"devices, one a stage. Received: {len(devices)} device(s), {', '.join(devices)}"
        )
    if micro_batches is not None and micro_batches != schedule.num_micro_batches:
        raise ValueError(
            f"The schedule '{schedule.name}' is for {schedule.num_micro_batches} micro-batches. "
            f"Leave `micro_batches` out. Received: micro_batches={micro_batches}"
        )
    for lane in schedule.lanes:
        used = {devices[op.stage]: op.stage for op in lane}
        if len(used) > 1:
            stages = " and ".join(f"{stage} ({device})" for device, stage in used.items())
            raise ValueError(
                f"A lane of the schedule '{schedule.name}' holds stages of several devices: "
                f"{stages}. A lane is the order of one device. Received: devices={list(devices)}"
            )


def _stages_to_recompute(
    recompute: bool | str | Collection[int], schedule: Schedule
) -> Collection[int]:
    if recompute is False:
        return ()
    if recompute is True:
        return range(schedule.num_stages)
    if recompute == "auto":
        # Where no more than one micro-batch is alive, to run it again saves nothing.
        peaks = replay(schedule).peak_live
        return [stage for stage, peak in enumerate(peaks) if peak > 1]
    stages = recompute if isinstance(recompute, (list, tuple, set, frozenset, range)) else None
    if stages is None or not all(
        type(stage) is int and 0 <= stage < schedule.num_stages for stage in stages
    ):
        raise ValueError(
            '`recompute` must be `True`, `False`, `"auto"` or a list of stage numbers from 0 to '
            f"{schedule.num_stages - 1}. Received: recompute={recompute!r}"
        )
    return stages


def make_plan(
    calls: LayerCalls, cuts: Sequence[str] | PartitionPlan | None, num_stages: int
) -> PartitionPlan:
    costs = layer_costs(calls)
    if calls.one_per_stage:
        if cuts is not None:
            raise ValueError(
                f"A list of stages is cut already: `cuts` must be left out. Received: cuts={cuts!r}"
            )
        plan = partition.balance(costs, len(costs))
    elif isinstance(cuts, PartitionPlan):
        plan = partition.cut_after(costs, cuts.cuts)
        if plan.ends != cuts.ends:
            raise ValueError(
                "The PartitionPlan was made for another model: its stages have other layers. "
                f"Received: cuts={cuts!r}"
            )
    elif cuts is not None:
        plan = partition.cut_after(costs, cuts)
    else:
        plan = partition.balance(costs, num_stages)
    if plan.num_stages != num_stages:
        raise ValueError(
            f"There must be one device a stage, but {plan.num_stages} stage(s) (cut after "
            f"{', '.join(map(repr, plan.cuts)) or 'nothing'}) were given {num_stages} device(s). "
            f"Received: cuts={cuts!r}, {num_stages} devices"
        )
    return plan


def plan(model: keras.Model, num_stages: int) -> PartitionPlan:
    """Plans a split without moving anything.

    Example:

    ```python
    print(keras_mgpu.plan(model, 4))
    ```

    Args:
        model: A built Sequential or Functional model.
        num_stages: Integer. How many stages to cut it into.

    Returns:
        A `PartitionPlan`, which `PipelineSplit` takes as `cuts`.
    """
    return partition.balance(layer_costs(calls_of(model)), num_stages)
