"""From what a user asks for to a plan: which layers, on which devices, cut where."""

from __future__ import annotations

from collections.abc import Sequence

import keras

from keras_mgpu import checks, layer_calls, partition
from keras_mgpu import devices as device_names
from keras_mgpu.layer_calls import LayerCalls
from keras_mgpu.layer_costs import layer_costs
from keras_mgpu.partition import PartitionPlan


def calls_of(model: keras.Model) -> LayerCalls:
    """The calls of a model that can be split, or the error that says why it cannot."""
    checks.check_model(model)
    calls = layer_calls.from_model(model)
    if calls is None:
        raise checks.not_splittable(model)
    return calls


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


def make_plan(
    calls: LayerCalls, cuts: Sequence[str] | PartitionPlan | None, num_stages: int
) -> PartitionPlan:
    costs = layer_costs(calls)
    if calls.one_a_stage:
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
