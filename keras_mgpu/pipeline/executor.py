"""Runs stages in the order of a schedule, on their devices: values in, values out.

A schedule is only an order. Here it is made true: each op is built under its stage's device, and a
control edge ties it to the op before it on the same lane. TensorFlow copies between devices by
itself. This file knows no optimizer and no metric.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import keras
import tensorflow as tf
from keras import tree

from keras_mgpu.blueprint.schedule import Op, Schedule
from keras_mgpu.model.layer_calls import LayerCall, Value
from keras_mgpu.pipeline.stage.gradients import add_gradients
from keras_mgpu.pipeline.stage.stage_function import StageFunction, StageOutputs
from keras_mgpu.pipeline.stage.stage_gradients import Arguments, TapedStage, TracedStage
from keras_mgpu.pipeline.stage.stage_program import Leaf, float_leaves
from keras_mgpu.pipeline.state_flow import StateFlow

KINDS = {"F": "forward", "R": "recompute", "B": "backward", "W": "weights"}


class Head(Protocol):
    """What stands behind the last stage: takes outputs, gives their gradients."""

    @property
    def couples_samples(self) -> bool:
        """Whether it gives gradients only after it has taken all outputs."""

    def take_outputs(self, micro_batch: int, outputs: list[Value]) -> None:
        """Takes what the model returned for a micro-batch."""

    def take_losses(
        self,
        micro_batch: int,
        losses: Sequence[tf.Tensor],
        calls: Sequence[tuple[LayerCall, list[Value]]],
    ) -> list[tf.Tensor]:
        """Takes losses that layers added; returns the gradient of the total loss for each."""

    def output_gradients(self, micro_batch: int) -> list[list[tf.Tensor | None]]:
        """For each output, the gradients of its leaves."""


def infer(
    functions: Sequence[StageFunction],
    schedule: Schedule,
    feeds: Sequence[dict[int, Value]],
    outputs: Sequence[int],
    head: Head,
    state: StateFlow,
) -> None:
    """Runs every forward of a schedule that has nothing else.

    Args:
        functions: One a stage, in order.
        schedule: The order of the ops.
        feeds: For each micro-batch, the model's inputs by their numbers.
        outputs: Numbers of the values the model returns.
        head: Takes outputs.
        state: Hands out and takes the state of layers.
    """
    flow = _Flow(functions, feeds, outputs, head, state)

    def forward(op: Op) -> list[Any]:
        result = functions[op.stage](**vars(flow.arguments(op)))
        flow.take(op, result)
        return _tensors(result)

    _in_order(schedule, functions, forward)


class Trainer:
    """Stages that train; what was made for one step serves the next.

    Args:
        functions: One a stage, in order.
        weights: The variables to find gradients for.
        num_micro_batches: How many a step has.
        data: Numbers of the model's inputs.
        eager: Whether steps run without being traced.
        stays_a_call: Whether stages must not be copied into the step.
    """

    def __init__(
        self,
        functions: Sequence[StageFunction],
        weights: Sequence[keras.Variable],
        num_micro_batches: int,
        data: Sequence[int],
        eager: bool,
        stays_a_call: bool,
    ) -> None:
        made = {number for function in functions for number in function.stage.outputs} - set(data)
        self._functions = functions
        self._weights = weights
        self._eager = eager
        self._used = [_weights_of(function, weights) for function in functions]
        self._stages: list[Any] = [
            TapedStage(function, used, made)
            if eager
            else TracedStage(function, used, made, num_micro_batches, stays_a_call)
            for function, used in zip(functions, self._used)
        ]

    def rehearse(
        self,
        schedule: Schedule,
        feed: dict[int, Value],
        outputs: Sequence[int],
        head: Head,
        state: StateFlow,
    ) -> None:
        """Finds out, with one micro-batch, which gradients there will be, and makes all functions.

        Must be called in a graph that is thrown away.
        """
        num, functions = schedule.num_micro_batches, self._functions
        flow = _Flow(functions, [feed] * num, outputs, head, state)
        arguments = []
        for stage, function in enumerate(functions):
            op = Op("F", stage, 0)
            arguments.append(flow.arguments(op))
            result = function(**vars(arguments[-1]))
            flow.take(op, result)
        for micro_batch in range(1, num if head.couples_samples else 1):
            head.take_outputs(micro_batch, [flow.values[0][number] for number in outputs])
        wanted = {
            (number, place)
            for number, of_leaves in zip(outputs, head.output_gradients(0))
            for place, gradient in enumerate(of_leaves)
            if gradient is not None
        }
        config = _tensors(result)[0].op.get_attr("config_proto")
        for stage in reversed(range(len(functions))):
            own = {leaf for leaf in wanted if leaf[0] in functions[stage].stage.outputs}
            kinds = schedule.kinds_of(stage)
            wanted.update(self._stages[stage].rehearse(arguments[stage], own, kinds, config))

    def run(
        self,
        schedule: Schedule,
        feeds: Sequence[dict[int, Value]],
        outputs: Sequence[int],
        head: Head,
        state: StateFlow,
    ) -> list[Any]:
        """Runs every op of the schedule; returns the gradient of each weight, or `None`."""
        for stage in self._stages:
            stage.begin()
        flow = _Flow(self._functions, feeds, outputs, head, state)
        step = _Step(self._stages, flow, head, schedule)
        _in_order(schedule, self._functions, step.run)
        return self._total()

    def measure(self, num_samples: int, num_rounds: int) -> list[Any]:
        """For each stage, seconds and bytes of a micro-batch; see `StageProgram.measure`."""
        return [stage.measure(num_samples, num_rounds) for stage in self._stages]

    def _total(self) -> list[Any]:
        """For each weight, the sum over the stages that use it, on the weight's own device."""
        parts: dict[int, list[Any]] = defaultdict(list)
        for function, used, stage in zip(self._functions, self._used, self._stages):
            with tf.device(function.stage.device):
                gradients = stage.gradients()
            for weight, gradient in zip(used, gradients):
                if gradient is not None:
                    parts[id(weight)].append(gradient)
        totals = []
        for weight in self._weights:
            with tf.device(weight.value.device):
                totals.append(add_gradients(parts[id(weight)]))
        return totals


class _Step:
    """The runs and cotangents of one training step while it is built."""

    def __init__(self, stages: Sequence[Any], flow: _Flow, head: Head, schedule: Schedule) -> None:
        ops = {op for lane in schedule.lanes for op in lane}
        self._stages = stages
        self._flow = flow
        self._head = head
        self._recomputes = {op.stage for op in ops if op.kind == "R"}
        self._splits = {op.stage for op in ops if op.kind == "W"}
        self._kept: dict[tuple[int, int], Any] = {}
        self._loss_gradients: dict[tuple[int, int], list[tf.Tensor]] = {}
        self._cotangents = [_Cotangents() for _ in range(schedule.num_micro_batches)]

    def run(self, op: Op) -> list[Any]:
        kinds = {"F": self._forward, "R": self._recompute, "B": self._backward, "W": self._weights}
        return kinds[op.kind](op)

    def _forward(self, op: Op) -> list[Any]:
        key, stage = (op.stage, op.micro_batch), self._stages[op.stage]
        keep = op.stage not in self._recomputes
        result, self._kept[key], ran = stage.forward(self._flow.arguments(op), keep)
        self._loss_gradients[key] = self._flow.take(op, result)
        return ran

    def _recompute(self, op: Op) -> list[Any]:
        key = op.stage, op.micro_batch
        self._kept[key], ran = self._stages[op.stage].recompute(self._kept[key])
        return ran

    def _backward(self, op: Op) -> list[Any]:
        key, stage = (op.stage, op.micro_batch), self._stages[op.stage]
        cotangents = self._cotangents[op.micro_batch]
        if op.stage == len(self._stages) - 1:
            gradients = self._head.output_gradients(op.micro_batch)
            for number, of_leaves in zip(self._flow.outputs, gradients):
                for place, gradient in enumerate(of_leaves):
                    cotangents.add((number, place), gradient)
        given = cotangents.take(self._flow.leaves_of(op.stage, op.micro_batch))
        found, self._kept[key], ran = stage.backward(
            self._kept[key], given, self._loss_gradients[key], op.stage not in self._splits
        )
        for leaf, gradient in found.items():
            cotangents.add(leaf, gradient)
        return ran

    def _weights(self, op: Op) -> list[Any]:
        return self._stages[op.stage].weight_gradients(self._kept.pop((op.stage, op.micro_batch)))


class _Flow:
    """The values of each micro-batch on their way through the stages."""

    def __init__(
        self,
        functions: Sequence[StageFunction],
        feeds: Sequence[dict[int, Value]],
        outputs: Sequence[int],
        head: Head,
        state: StateFlow,
    ) -> None:
        self.values = [dict(feed) for feed in feeds]
        self.outputs = outputs
        self._functions = functions
        self._head = head
        self._state = state
        self._handed_in = [_read(function) for function in functions]

    def arguments(self, op: Op) -> Arguments:
        """What the forward `op` starts from."""
        values = self.values[op.micro_batch]
        seen: dict[int, tf.Tensor] = {}

        def read_state(variable: keras.Variable) -> tf.Tensor:
            # A second run must see what the first one saw, though that has moved it since.
            if id(variable) not in seen:
                seen[id(variable)] = self._state.read(variable, op.micro_batch)
            return seen[id(variable)]

        inputs = [values[number] for number in self._functions[op.stage].stage.inputs]
        return Arguments(inputs, self._handed_in[op.stage], read_state)

    def take(self, op: Op, result: StageOutputs) -> list[tf.Tensor]:
        """Takes what the forward `op` gave; returns gradients for the losses among it."""
        stage, values = self._functions[op.stage].stage, self.values[op.micro_batch]
        gradients = self._head.take_losses(op.micro_batch, result.losses, result.loss_calls)
        values.update(zip(stage.outputs, result.values))
        self._state.write(stage, op.micro_batch, result)
        if op.stage == len(self._functions) - 1:
            self._head.take_outputs(op.micro_batch, [values[number] for number in self.outputs])
        return gradients

    def leaves_of(self, stage: int, micro_batch: int) -> list[Leaf]:
        """The outputs of a stage that can have a gradient."""
        numbers = self._functions[stage].stage.outputs
        return list(float_leaves(numbers, [self.values[micro_batch][n] for n in numbers]))


class _Cotangents:
    """Gradients of values that have been found so far, each from one stage that used the value."""

    def __init__(self) -> None:
        self._found: dict[Leaf, list[tf.Tensor]] = defaultdict(list)

    def add(self, leaf: Leaf, gradient: tf.Tensor | None) -> None:
        if gradient is not None:
            self._found[leaf].append(gradient)

    def take(self, leaves: Sequence[Leaf]) -> dict[Leaf, tf.Tensor]:
        found = {leaf: self._found.pop(leaf) for leaf in leaves if leaf in self._found}
        return {leaf: g[0] if len(g) == 1 else tf.add_n(g) for leaf, g in found.items()}


def _in_order(schedule: Schedule, functions: Sequence[StageFunction], run: Any) -> None:
    """Builds all ops: each on its stage's device, behind the one before it on its lane."""
    last: dict[int, list[Any]] = defaultdict(list)
    lanes = {op: lane for lane, ops in enumerate(schedule.lanes) for op in ops}
    for op in schedule.order():
        with _placed(op, functions[op.stage].stage.device, last[lanes[op]]):
            last[lanes[op]] = run(op) or last[lanes[op]]


@contextlib.contextmanager
def _placed(op: Op, device: str, after: Sequence[Any]) -> Iterator[None]:
    scope = f"stage_{op.stage}/{KINDS[op.kind]}/micro_batch_{op.micro_batch}"
    with tf.device(device), tf.name_scope(scope), tf.control_dependencies(after):
        yield


def _tensors(result: StageOutputs) -> list[tf.Tensor]:
    leaves = [leaf for value in result.values for leaf in tree.flatten(value)]
    return [tensor for tensor in (*leaves, *result.losses) if isinstance(tensor, tf.Tensor)]


def _read(function: StageFunction) -> list[tf.Tensor]:
    """Reads the weights that a stage is handed in: once a step, not once a micro-batch."""
    with tf.device(function.stage.device):
        return [tf.identity(tf.convert_to_tensor(v.value)) for v in function.handed_in]


def _weights_of(function: StageFunction, weights: Sequence[keras.Variable]) -> list[keras.Variable]:
    used = {id(v) for v in (*function.stage.variables, *function.handed_in)}
    return [v for v in weights if id(v) in used]
