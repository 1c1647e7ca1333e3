"""Turns the arguments of `PipelineSplit` into devices, a plan and a schedule."""

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

MICRO_BATCHES_PER_DEVICE = 4  # The bubble is then about a fifth.


def calls_of(model: keras.Model) -> LayerCalls:
    """Returns the layer calls of a model, or raises an error if it cannot be split."""
    validation.check_model(model)
    calls = layer_calls.from_model(model)
    if calls is None:
        raise validation.not_splittable(model)
    return calls


def devices_of_stages(
    devices: Sequence[str] | None, stages_per_device: int | None, schedule: Any
) -> tuple[str, ...]:
    """Returns the device of each stage: as given, or repeated round by round."""
    names = resolve_devices(devices)
    if stages_per_device is not None and (
        type(stages_per_device) is not int or stages_per_device < 1
    ):
        raise ValueError(
            "`stages_per_device` must be a positive integer. "
            f"Received: stages_per_device={stages_per_device!r}"
        )
    is_repeated = len(set(names)) < len(names)
    if is_repeated and stages_per_device not in (None, 1):
        raise ValueError(
            "`stages_per_device` cannot be used if `devices` contains a device more than once, "
            "because each entry of `devices` is one stage. Remove `stages_per_device`. "
            f"Received: devices={list(names)}, stages_per_device={stages_per_device}"
        )
    if stages_per_device is None:
        stages_per_device = 2 if schedule == "interleaved" and not is_repeated else 1
    return names * stages_per_device


def resolve_devices(devices: Sequence[str] | None) -> tuple[str, ...]:
    if devices is not None:
        names = device_names.resolve(devices)
        if not names:
            raise ValueError("`devices` must contain at least one device. Received: devices=[]")
        return names
    names = tuple(device_names.gpus())
    if not names:
        raise ValueError(
            "`devices` defaults to all GPUs, but no GPU was found. Available devices: "
            f"{', '.join(device_names.available())}. Pass `devices`, or use logical CPU devices: "
            "`devices=keras_mgpu.logical_devices(2)`. Received: devices=None"
        )
    return names


def make_schedule(
    schedule: str | Schedule | Sequence[Any],
    devices: Sequence[str],
    micro_batches: int | None,
    recompute: bool | str | Collection[int],
) -> Schedule:
    """Returns the schedule for a name, a `Schedule` or lanes as text, with recomputation."""
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
            "Stages of the schedule 'interleaved' must be assigned to the devices round by round, "
            'such as `devices=["/GPU:0", "/GPU:1", "/GPU:0", "/GPU:1"]`. Or pass each device once, '
            f"with `stages_per_device=2`. Received: devices={list(devices)}"
        )


def _check_own(schedule: Schedule, devices: Sequence[str], micro_batches: int | None) -> None:
    if not schedule.has_backward:
        raise ValueError(
            f"The schedule '{schedule.name}' cannot train a model, because it has no backward ops. "
            f"Received: schedule={schedule!r}"
        )
    if schedule.num_stages != len(devices):
        raise ValueError(
            f"The schedule '{schedule.name}' has {schedule.num_stages} stage(s), so `devices` must "
            f"have as many entries, one per stage. Received: devices={list(devices)}"
        )
    if micro_batches is not None and micro_batches != schedule.num_micro_batches:
        raise ValueError(
            f"The schedule '{schedule.name}' has {schedule.num_micro_batches} micro-batch(es). "
            f"Remove `micro_batches`. Received: micro_batches={micro_batches}"
        )
    for lane in schedule.lanes:
        used = {devices[op.stage]: op.stage for op in lane}
        if len(used) > 1:
            stages = " and ".join(f"{stage} ({device})" for device, stage in used.items())
            raise ValueError(
                "All stages in a lane of a schedule must be on the same device. A lane of "
                f"'{schedule.name}' contains stages {stages}. Received: devices={list(devices)}"
            )


def _stages_to_recompute(
    recompute: bool | str | Collection[int], schedule: Schedule
) -> Collection[int]:
    if recompute is False:
        return ()
    if recompute is True:
        return range(schedule.num_stages)
    if recompute == "auto":
        # Recomputing saves nothing where at most one micro-batch is alive.
        peaks = replay(schedule).peak_live
        return [stage for stage, peak in enumerate(peaks) if peak > 1]
    stages = recompute if isinstance(recompute, (list, tuple, set, frozenset, range)) else None
    if stages is None or not all(
        type(stage) is int and 0 <= stage < schedule.num_stages for stage in stages
    ):
        raise ValueError(
            '`recompute` must be `True`, `False`, `"auto"` or a list of stage indices from 0 to '
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
                "`cuts` cannot be used with a list of stages, because each entry is one stage. "
                f"Remove `cuts`. Received: cuts={cuts!r}"
            )
        plan = partition.balance(costs, len(costs))
    elif isinstance(cuts, PartitionPlan):
        plan = partition.cut_after(costs, cuts.cuts)
        if plan.ends != cuts.ends:
            raise ValueError(
                "The `PartitionPlan` belongs to another model: its stages have different layers. "
                f"Make one for this model with `keras_mgpu.plan(model, {cuts.num_stages})`. "
                f"Received: cuts={cuts!r}"
            )
    elif cuts is not None:
        plan = partition.cut_after(costs, cuts)
    else:
        plan = partition.balance(costs, num_stages)
    if plan.num_stages != num_stages:
        raise ValueError(
            f"`devices` must have one entry per stage, but there are {plan.num_stages} stage(s) "
            f"(cut after {', '.join(map(repr, plan.cuts)) or 'no layer'}) and {num_stages} "
            f"device(s). Received: cuts={cuts!r}"
        )
    return plan


def plan(model: keras.Model, num_stages: int) -> PartitionPlan:
    """Plans how to split a model, without changing it.

    Example:

    ```python
    print(keras_mgpu.plan(model, 4))
    ```

    Args:
        model: A built Sequential or Functional model.
        num_stages: Integer, the number of stages.

    Returns:
        A `PartitionPlan`, which can be passed to `PipelineSplit` as `cuts`.
    """
    return partition.balance(layer_costs(calls_of(model)), num_stages)
