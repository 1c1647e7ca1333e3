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

from keras_mgpu.gradients import GradientSum, add_gradients
from keras_mgpu.layer_calls import LayerCall, Value
from keras_mgpu.schedule import Op, Schedule
from keras_mgpu.stage_function import StageFunction, StageOutputs
from keras_mgpu.state_flow import StateFlow

KINDS = {"F": "forward", "B": "backward"}


class Head(Protocol):
    """What stands behind the last stage: takes outputs, gives their gradients."""

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


class Executor:
    """One step through the pipeline.

    Args:
        functions: One a stage, in order.
        schedule: The order of the ops.
        outputs: Numbers of the values the model returns.
        weights: The variables to find gradients for.
    """

    def __init__(
        self,
        functions: Sequence[StageFunction],
        schedule: Schedule,
        outputs: Sequence[int],
        weights: Sequence[keras.Variable] = (),
    ) -> None:
        self._functions = functions
        self._schedule = schedule
        self._outputs = outputs
        self._weights = weights

    def run(self, feeds: Sequence[dict[int, Value]], head: Head, state: StateFlow) -> list[Any]:
        """Runs every op of the schedule; returns the gradient of each weight, or `None`.

        Args:
            feeds: For each micro-batch, the model's inputs by their numbers.
            head: Takes outputs and gives gradients.
            state: Hands out and takes the state of layers.
        """
        is_training = self._schedule.has_backward
        step = _Step(self._functions, self._weights, feeds, head, state, self._outputs, is_training)
        last_op: dict[int, list[Any]] = defaultdict(list)
        lanes = {op: lane for lane, ops in enumerate(self._schedule.lanes) for op in ops}
        for op in self._schedule.order():
            with _placed(op, self._functions[op.stage].stage.device, last_op[lanes[op]]):
                ran = step.forward(op) if op.kind == "F" else step.backward(op)
            last_op[lanes[op]] = ran or last_op[lanes[op]]
        return step.gradients()


@contextlib.contextmanager
def _placed(op: Op, device: str, after: Sequence[Any]) -> Iterator[None]:
    scope = f"stage_{op.stage}/{KINDS[op.kind]}/micro_batch_{op.micro_batch}"
    with tf.device(device), tf.name_scope(scope), tf.control_dependencies(after):
        yield


class _Step:
    """The values, gradients and tapes of one step while it is built."""

    def __init__(
        self,
        functions: Sequence[StageFunction],
        weights: Sequence[keras.Variable],
        feeds: Sequence[dict[int, Value]],
        head: Head,
        state: StateFlow,
        outputs: Sequence[int],
        is_training: bool,
    ) -> None:
        self._is_training = is_training
        self._functions = functions
        self._weights = weights
        self._values = [dict(feed) for feed in feeds]
        self._data = frozenset(number for feed in feeds for number in feed)
        self._head = head
        self._state = state
        self._outputs = outputs
        self._borrowed = [_read(function) for function in functions]
        self._stage_weights = [_weights_of(function, weights) for function in functions]
        self._runs: dict[tuple[int, int], _Run] = {}
        self._cotangents: list[_Cotangents] = [_Cotangents() for _ in feeds]
        self._sums = [GradientSum(used) for used in self._stage_weights]

    def forward(self, op: Op) -> list[Any]:
        function, values = self._functions[op.stage], self._values[op.micro_batch]
        run = _Run(self._watched_inputs(function, op), self._sources(function, op.stage))
        with run.recording(self._is_training):
            run.result = result = self._call(function, op)
        run.loss_gradients = self._head.take_losses(
            op.micro_batch, result.losses, result.loss_calls
        )
        if self._is_training:
            self._runs[op.stage, op.micro_batch] = run
        values.update(zip(function.stage.outputs, result.values))
        self._state.write(function.stage, op.micro_batch, result)
        if op.stage == len(self._functions) - 1:
            self._head.take_outputs(op.micro_batch, [values[number] for number in self._outputs])
        ran = [leaf for value in result.values for leaf in tree.flatten(value)]
        return [tensor for tensor in (*ran, *result.losses) if isinstance(tensor, tf.Tensor)]

    def _call(self, function: StageFunction, op: Op) -> StageOutputs:
        values = self._values[op.micro_batch]
        return function(
            [values[number] for number in function.stage.inputs],
            self._borrowed[op.stage],
            lambda variable: self._state.read(variable, op.micro_batch),
        )

    def backward(self, op: Op) -> list[Any]:
        stage = self._functions[op.stage].stage
        cotangents = self._cotangents[op.micro_batch]
        if op.stage == len(self._functions) - 1:
            gradients = self._head.output_gradients(op.micro_batch)
            for number, of_leaves in zip(self._outputs, gradients):
                for place, gradient in enumerate(of_leaves):
                    cotangents.add(number, place, gradient)
        run = self._runs.pop((op.stage, op.micro_batch))
        targets, given = list(run.result.losses), list(run.loss_gradients)
        for number, value in zip(stage.outputs, run.result.values):
            for place, leaf in _floats(value):
                gradient = cotangents.take(number, place)
                if gradient is not None:
                    targets.append(leaf)
                    given.append(gradient)
        if not targets:
            return []
        gradients = run.tape.gradient(targets, run.sources, output_gradients=given)
        of_inputs, of_weights = gradients[: len(run.inputs)], gradients[len(run.inputs) :]
        for (number, place, _), gradient in zip(run.inputs, of_inputs):
            cotangents.add(number, place, gradient)
        summed = self._sums[op.stage].add(of_weights)
        return [g for g in (*of_inputs, *summed) if isinstance(g, tf.Tensor)]

    def gradients(self) -> list[Any]:
        """For each weight, the sum over the stages that use it, on the weight's own device."""
        parts: dict[int, list[Any]] = defaultdict(list)
        for weights, summed in zip(self._stage_weights, self._sums):
            for weight, gradient in zip(weights, summed.total()):
                if gradient is not None:
                    parts[id(weight)].append(gradient)
        totals = []
        for weight in self._weights:
            with tf.device(weight.value.device):
                totals.append(add_gradients(parts[id(weight)]))
        return totals

    def _watched_inputs(self, function: StageFunction, op: Op) -> list[tuple[int, int, tf.Tensor]]:
        """What a stage takes from other stages: number, place and tensor of each float leaf."""
        values = self._values[op.micro_batch]
        made = [number for number in function.stage.inputs if number not in self._data]
        return [(number, place, leaf) for number in made for place, leaf in _floats(values[number])]

    def _sources(self, function: StageFunction, stage: int) -> list[Any]:
        """What the tape must watch to find the gradients of a stage's weights."""
        borrowed = {id(v): t for v, t in zip(function.borrowed, self._borrowed[stage])}
        return [borrowed.get(id(v), v.value) for v in self._stage_weights[stage]]


class _Run:
    """A forward run of a stage that waits for its backward.

    Args:
        inputs: What it takes from other stages, each with number and place.
        weights: Its weights: variables, or tensors where they are borrowed.
    """

    result: StageOutputs
    loss_gradients: list[tf.Tensor]

    def __init__(self, inputs: list[tuple[int, int, tf.Tensor]], weights: list[Any]) -> None:
        self.inputs = inputs
        self.weights = weights
        self.sources = [leaf for _, _, leaf in inputs] + weights
        self.tape = tf.GradientTape(watch_accessed_variables=False)

    @contextlib.contextmanager
    def recording(self, is_training: bool) -> Iterator[None]:
        """Remembers for the backward what runs inside, if there will be one."""
        if not is_training:
            yield
            return
        with self.tape:
            self.tape.watch(self.sources)
            yield


class _Cotangents:
    """Gradients of values that have been found so far, each from one stage that used the value."""

    def __init__(self) -> None:
        self._found: dict[tuple[int, int], list[tf.Tensor]] = defaultdict(list)

    def add(self, number: int, place: int, gradient: Any) -> None:
        if gradient is not None:
            self._found[number, place].append(tf.convert_to_tensor(gradient))

    def take(self, number: int, place: int) -> tf.Tensor | None:
        found = self._found.pop((number, place), [])
        if len(found) < 2:
            return found[0] if found else None
        return tf.add_n(found)


def _read(function: StageFunction) -> list[tf.Tensor]:
    """Reads the weights a stage borrows: once a step, not once a micro-batch."""
    with tf.device(function.stage.device):
        return [tf.identity(tf.convert_to_tensor(v.value)) for v in function.borrowed]


def _weights_of(function: StageFunction, weights: Sequence[keras.Variable]) -> list[keras.Variable]:
    used = {id(v) for v in (*function.stage.variables, *function.borrowed)}
    return [v for v in weights if id(v) in used]


def _floats(value: Value) -> list[tuple[int, tf.Tensor]]:
    """The leaves of a value that can have a gradient, each with its place."""
    return [
        (place, leaf)
        for place, leaf in enumerate(tree.flatten(value))
        if isinstance(leaf, tf.Tensor) and (leaf.dtype.is_floating or leaf.dtype.is_complex)
    ]
