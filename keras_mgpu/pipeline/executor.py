"""Runs stages in the order of a schedule, on their devices: values in, values out.

A schedule is only an order. Here it becomes real: each op is built under its stage's device, and a
control edge ties it to the op before it on the same lane. TensorFlow copies between devices by
itself. This file knows no optimizer and no metric.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import keras
import tensorflow as tf

from keras_mgpu.blueprint.schedule import Op, Schedule
from keras_mgpu.internals.identity import IdentityMap, IdentitySet
from keras_mgpu.model.layer_calls import Value
from keras_mgpu.model.stages import Stage
from keras_mgpu.pipeline.stage.gradients import Gradient, add_gradients
from keras_mgpu.pipeline.stage.piece_function import Waitable
from keras_mgpu.pipeline.stage.stage_function import (
    LossCall,
    StageFunction,
    StageInputs,
    StageOutputs,
    StateReader,
)
from keras_mgpu.pipeline.stage.stage_program import Leaf, float_leaves
from keras_mgpu.pipeline.stage.training_stage import StageRun, StepsAhead, TrainingStage


class Head(Protocol):
    """What follows the last stage: takes outputs, gives their gradients."""

    @property
    def couples_samples(self) -> bool:
        """Whether it gives gradients only after it has taken all outputs."""

    def take_outputs(self, micro_batch: int, outputs: list[Value]) -> None:
        """Takes what the model returned for a micro-batch."""

    def take_losses(
        self, micro_batch: int, losses: Sequence[tf.Tensor], calls: Sequence[LossCall]
    ) -> list[tf.Tensor]:
        """Takes losses that layers added; returns the gradient of the total loss for each."""

    def output_gradients(self, micro_batch: int) -> list[list[tf.Tensor | None]]:
        """For each output, the gradients of its leaves."""


class State(Protocol):
    """The state of layers over the micro-batches of a step."""

    def reader(self, micro_batch: int) -> StateReader:
        """The state as one run of a stage sees it: however often it reads, the same values."""

    def write(self, stage: Stage, micro_batch: int, outputs: StageOutputs) -> None:
        """Takes what a run of a stage assigned."""


S = TypeVar("S", bound=State, covariant=True)


@dataclass(frozen=True, eq=False)
class StepData(Generic[S]):
    """What flows through one step.

    Attributes:
        feeds: For each micro-batch, the model's inputs by their numbers.
        outputs: Numbers of the values the model returns.
        head: Takes outputs, gives gradients.
        state: Hands out and takes the state of layers.
    """

    feeds: Sequence[dict[int, Value]]
    outputs: Sequence[int]
    head: Head
    state: S


def infer(functions: Sequence[StageFunction], schedule: Schedule, data: StepData[State]) -> None:
    """Runs every forward of a schedule that has nothing else.

    Args:
        functions: One per stage, in order.
        schedule: The order of the ops.
        data: What flows through.
    """
    flow = _Flow(functions, data)

    def forward(op: Op) -> list[Waitable]:
        outputs = functions[op.stage](flow.inputs(op))
        flow.take(op, outputs)
        return list(outputs.tensors)

    _in_order(schedule, functions, forward)


class Trainer:
    """Stages that train; what was made for one step serves the next.

    Args:
        functions: One per stage, in order.
        stages: The same stages as they train.
        weights: The variables to find gradients for.
    """

    def __init__(
        self,
        functions: Sequence[StageFunction],
        stages: Sequence[TrainingStage],
        weights: Sequence[keras.Variable],
    ) -> None:
        self._functions = functions
        self._stages = stages
        self._weights = weights

    def rehearse(self, schedule: Schedule, data: StepData[State]) -> None:
        """Finds out, with one micro-batch, which gradients there will be, and makes all functions.

        Must be called in a graph that is thrown away.
        """
        try:
            self._rehearse(schedule, data)
        except BaseException:
            for stage in self._stages:
                stage.release()
            raise

    def _rehearse(self, schedule: Schedule, data: StepData[State]) -> None:
        flow, inputs = _Flow(self._functions, data), []
        for stage, function in enumerate(self._functions):
            op = Op("F", stage, 0)
            inputs.append(flow.inputs(op))
            outputs = function(inputs[-1])
            flow.take(op, outputs)
        flow.repeat_outputs(schedule.num_micro_batches)
        wanted = {leaf for leaf, _ in flow.gradients_of_outputs(0)}
        for stage in reversed(range(len(self._stages))):
            own = {leaf for leaf in wanted if leaf[0] in self._functions[stage].stage.outputs}
            wanted.update(self._stages[stage].prepare(StepsAhead(inputs[stage], own)))

    def run(self, schedule: Schedule, data: StepData[State]) -> list[Gradient]:
        """Runs every op of the schedule; returns the gradient of each weight, or `None`."""
        for stage in self._stages:
            stage.begin()
        step = _Step(self._stages, _Flow(self._functions, data), schedule)
        _in_order(schedule, self._functions, step.run)
        return self._total()

    def _total(self) -> list[Gradient]:
        """For each weight, the sum over the stages that use it, on the weight's own device."""
        parts: IdentityMap[keras.Variable, list[Gradient]]
        parts = IdentityMap((weight, []) for weight in self._weights)
        for function, stage in zip(self._functions, self._stages):
            with tf.device(function.stage.device):
                gradients = stage.gradients()
            used = weights_of(function, self._weights)
            for weight, gradient in zip(used, gradients, strict=True):
                parts[weight].append(gradient)
        totals = []
        for weight in self._weights:
            with tf.device(weight.value.device):
                totals.append(add_gradients(parts[weight]))
        return totals


def weights_of(function: StageFunction, weights: Sequence[keras.Variable]) -> list[keras.Variable]:
    """Those of the weights that a stage uses."""
    used = IdentitySet((*function.stage.variables, *function.handed_in))
    return [weight for weight in weights if weight in used]


class _Step:
    """The micro-batches in the stages of one training step while it is built."""

    def __init__(self, stages: Sequence[TrainingStage], flow: _Flow, schedule: Schedule) -> None:
        self._stages = stages
        self._flow = flow
        self._schedule = schedule
        self._runs: dict[tuple[int, int], StageRun] = {}
        self._loss_gradients: dict[tuple[int, int], list[tf.Tensor]] = {}
        self._cotangents = [_Cotangents() for _ in range(schedule.num_micro_batches)]

    def run(self, op: Op) -> list[Waitable]:
        kinds = {"F": self._forward, "R": self._recompute, "B": self._backward, "W": self._weights}
        return kinds[op.kind](op)

    def _forward(self, op: Op) -> list[Waitable]:
        run = self._stages[op.stage].forward(self._flow.inputs(op))
        key = op.stage, op.micro_batch
        self._runs[key] = run
        self._loss_gradients[key] = self._flow.take(op, run.outputs)
        return run.ran

    def _recompute(self, op: Op) -> list[Waitable]:
        return self._runs[op.stage, op.micro_batch].recompute()

    def _backward(self, op: Op) -> list[Waitable]:
        key, cotangents = (op.stage, op.micro_batch), self._cotangents[op.micro_batch]
        if op.stage == len(self._stages) - 1:
            cotangents.add(self._flow.gradients_of_outputs(op.micro_batch))
        given = cotangents.take(self._flow.leaves_of(op.stage, op.micro_batch))
        found = self._runs[key].backward(given, self._loss_gradients[key])
        cotangents.add(found.of_inputs.items())
        if op.stage not in self._schedule.split_stages:
            del self._runs[key]
        return found.ran

    def _weights(self, op: Op) -> list[Waitable]:
        return self._runs.pop((op.stage, op.micro_batch)).weight_gradients()


class _Flow:
    """The values of each micro-batch on their way through the stages."""

    def __init__(self, functions: Sequence[StageFunction], data: StepData[State]) -> None:
        self._values = [dict(feed) for feed in data.feeds]
        self._functions = functions
        self._data = data
        self._handed_in = [_read(function) for function in functions]

    def inputs(self, op: Op) -> StageInputs:
        """What the forward `op` starts from."""
        values = self._values[op.micro_batch]
        return StageInputs(
            [values[number] for number in self._functions[op.stage].stage.inputs],
            self._handed_in[op.stage],
            self._data.state.reader(op.micro_batch),
        )

    def take(self, op: Op, outputs: StageOutputs) -> list[tf.Tensor]:
        """Takes what the forward `op` gave; returns gradients for the losses among it."""
        stage, head = self._functions[op.stage].stage, self._data.head
        gradients = head.take_losses(op.micro_batch, outputs.losses, outputs.loss_calls)
        self._values[op.micro_batch].update(zip(stage.outputs, outputs.values))
        self._data.state.write(stage, op.micro_batch, outputs)
        if op.stage == len(self._functions) - 1:
            head.take_outputs(op.micro_batch, self._outputs(op.micro_batch))
        return gradients

    def repeat_outputs(self, num_micro_batches: int) -> None:
        """Gives the first micro-batch's outputs again to a head that waits for all of them."""
        if self._data.head.couples_samples:
            for micro_batch in range(1, num_micro_batches):
                self._data.head.take_outputs(micro_batch, self._outputs(0))

    def gradients_of_outputs(self, micro_batch: int) -> list[tuple[Leaf, tf.Tensor]]:
        """The gradients that the head gives, each with the leaf it belongs to.

        A model may return a value twice, which then has two gradients.
        """
        gradients = self._data.head.output_gradients(micro_batch)
        return [
            ((number, place), gradient)
            for number, of_leaves in zip(self._data.outputs, gradients)
            for place, gradient in enumerate(of_leaves)
            if gradient is not None
        ]

    def leaves_of(self, stage: int, micro_batch: int) -> list[Leaf]:
        """The outputs of a stage that can have a gradient."""
        numbers = self._functions[stage].stage.outputs
        return list(float_leaves(numbers, [self._values[micro_batch][n] for n in numbers]))

    def _outputs(self, micro_batch: int) -> list[Value]:
        return [self._values[micro_batch][number] for number in self._data.outputs]


class _Cotangents:
    """Gradients of values that have been found so far, each from one stage that used the value."""

    def __init__(self) -> None:
        self._found: dict[Leaf, list[tf.Tensor]] = defaultdict(list)

    def add(self, gradients: Iterable[tuple[Leaf, tf.Tensor]]) -> None:
        for leaf, gradient in gradients:
            self._found[leaf].append(gradient)

    def take(self, leaves: Sequence[Leaf]) -> dict[Leaf, tf.Tensor]:
        found = {leaf: self._found.pop(leaf) for leaf in leaves if leaf in self._found}
        return {leaf: g[0] if len(g) == 1 else tf.add_n(g) for leaf, g in found.items()}


def _in_order(
    schedule: Schedule,
    functions: Sequence[StageFunction],
    run: Callable[[Op], list[Waitable]],
) -> None:
    """Builds all ops: each on its stage's device, after the one before it on its lane."""
    last: dict[int, list[Waitable]] = defaultdict(list)
    lanes = schedule.lane_of_stage
    for op in schedule.order():
        lane, device = lanes[op.stage], functions[op.stage].stage.device
        with tf.device(device), tf.name_scope(op.scope), tf.control_dependencies(last[lane]):
            last[lane] = run(op) or last[lane]


def _read(function: StageFunction) -> list[tf.Tensor]:
    """Reads the weights that a stage is handed in: once per step, not once per micro-batch."""
    with tf.device(function.stage.device):
        return [tf.identity(tf.convert_to_tensor(v.value)) for v in function.handed_in]
