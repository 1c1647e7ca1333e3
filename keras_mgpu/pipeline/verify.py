"""One step split and two unsplit from the same state: are the numbers Keras's own?"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import tree

from keras_mgpu.internals.identity import IdentityMap
from keras_mgpu.internals.keras_state import AssignmentScope
from keras_mgpu.model.layer_calls import Value
from keras_mgpu.model.memory_errors import running
from keras_mgpu.pipeline import micro_batches
from keras_mgpu.pipeline.loss.compiled_loss import CompiledLoss
from keras_mgpu.pipeline.loss.loss_head import merge_masked
from keras_mgpu.pipeline.loss.loss_terms import ONE
from keras_mgpu.pipeline.micro_batches import Batch, Number, as_tensor
from keras_mgpu.pipeline.pipeline import Pipeline
from keras_mgpu.pipeline.stage import stage_errors
from keras_mgpu.pipeline.stage.gradients import Gradient
from keras_mgpu.pipeline.stage.stage_function import LossCall

FEWER_SAMPLES = "a batch of fewer samples, which shows the same"
COLUMNS = ("on the whole batch", "on the same micro-batches")


@dataclass(frozen=True)
class Difference:
    """How far two values are apart.

    Attributes:
        name: What was compared: `"loss"`, or a variable's path.
        absolute: The largest absolute difference.
        relative: That, as a part of the largest number in the unsplit value.
    """

    name: str
    absolute: float
    relative: float


@dataclass(frozen=True)
class Comparison:
    """How far a split step is from one step of plain Keras.

    Attributes:
        loss: The difference of the loss.
        gradients: The difference of every variable's gradient.
    """

    loss: Difference
    gradients: tuple[Difference, ...]

    @property
    def rows(self) -> tuple[Difference, ...]:
        """All differences, that of the loss first."""
        return self.loss, *self.gradients

    @property
    def max_absolute(self) -> float:
        """The largest absolute difference of all; not a number if any is."""
        return float(np.max([each.absolute for each in self.rows]))

    @property
    def max_relative(self) -> float:
        """The largest relative difference of all; not a number if any is."""
        return float(np.max([each.relative for each in self.rows]))


@dataclass(frozen=True)
class VerifyReport:
    """What `PipelineSplit.verify` found. Printed, it is a table.

    Layers that draw random numbers, normalize over the batch or keep state of their own depend on
    how a batch is split, here as in any pipeline. For a model with such layers the first comparison
    shows how much that changes a step, and the second that nothing else does. For all other models
    both are rounding errors.

    Attributes:
        whole_batch: Compared with plain Keras on the whole batch.
        same_micro_batches: Compared with plain Keras on the same micro-batches, one by one.
    """

    whole_batch: Comparison
    same_micro_batches: Comparison

    @property
    def max_absolute(self) -> float:
        """The largest absolute difference from plain Keras on the whole batch."""
        return self.whole_batch.max_absolute

    @property
    def max_relative(self) -> float:
        """The largest relative difference from plain Keras on the whole batch."""
        return self.whole_batch.max_relative

    def largest(self, num_gradients: int) -> VerifyReport:
        """The same with the gradients that are furthest from plain Keras on the whole batch."""
        rows = self.whole_batch.gradients
        order = sorted(range(len(rows)), key=lambda i: rows[i].relative, reverse=True)
        chosen = order[:num_gradients]

        def of(comparison: Comparison) -> Comparison:
            return Comparison(comparison.loss, tuple(comparison.gradients[i] for i in chosen))

        return VerifyReport(of(self.whole_batch), of(self.same_micro_batches))

    def __str__(self) -> str:
        pairs = list(zip(self.whole_batch.rows, self.same_micro_batches.rows))
        width = max(len(first.name) for first, _ in pairs)
        titles = "  ".join(f"{title:>25}" for title in COLUMNS)
        heads = "  ".join([f"{'absolute':>14} {'relative':>10}"] * len(COLUMNS))
        lines = [
            "Differences from plain Keras",
            f"{'':{width}}  {titles}",
            f"{'':{width}}  {heads}",
        ]
        for pair in pairs:
            cells = "  ".join(f"{each.absolute:14.2e} {each.relative:10.2e}" for each in pair)
            lines.append(f"{pair[0].name:{width}}  {cells}")
        return "\n".join(lines)


@dataclass(frozen=True, eq=False)
class LossAndGradients:
    """What a step came to.

    Attributes:
        loss: The loss.
        gradients: The gradient of each weight, or `None`.
    """

    loss: tf.Tensor
    gradients: list[tf.Tensor | None]


class Verifier:
    """Takes steps without changing anything: no weight, no statistic, no seed, no metric.

    Args:
        model: The user's model.
        pipeline: The same model split.
        compiled: Its compiled loss and metrics.
        weights: The variables to compare gradients of.
    """

    def __init__(
        self,
        model: keras.Model,
        pipeline: Pipeline,
        compiled: CompiledLoss,
        weights: Sequence[keras.Variable],
    ) -> None:
        self._model = model
        self._pipeline = pipeline
        self._compiled = compiled
        self._weights = weights

    def verify(
        self,
        x: Value,
        y: Value,
        sample_weight: Value,
        *,
        scale: Number,
        metrics: Iterable[keras.Metric],
    ) -> VerifyReport:
        """Compares one split step with plain Keras's.

        Args:
            x: A batch of inputs.
            y: Its targets.
            sample_weight: Its weights.
            scale: What the optimizer multiplies the loss by.
            metrics: Metrics that a step updates, and that are put back.
        """
        data = [_to_tensors(value) for value in (x, y, sample_weight)]
        variables = [variable for metric in metrics for variable in metric.variables]
        before = [variable.numpy() for variable in variables]
        try:
            with stage_errors.in_step(self._pipeline.stages):
                split = self._split_step(data, scale)
        finally:
            for variable, value in zip(variables, before):
                variable.assign(value)
        with running("verifying: plain Keras takes this step, without stages", FEWER_SAMPLES):
            batch = self._pipeline.split_batch("train", *data)
            whole = in_parts = self._whole_step(batch)
            if batch.sizes.num_micro_batches > 1:
                in_parts = self._step_in_parts(batch)
        return VerifyReport(self._compare(split, whole), self._compare(split, in_parts))

    def _split_step(self, data: Sequence[Value], scale: Number) -> LossAndGradients:
        @tf.function(autograph=False)
        def step(x: Value, y: Value, sample_weight: Value) -> Any:
            batch = self._pipeline.split_batch("train", x, y, sample_weight)
            result = self._pipeline.train(batch, self._compiled, self._weights, scale)
            return tf.reduce_sum(result.loss), _dense(result.gradients)

        loss, gradients = step(*data)
        return LossAndGradients(loss, [None if g is None else g / scale for g in gradients])

    def _whole_step(self, batch: Batch) -> LossAndGradients:
        """The user's own model and its own `compute_loss`, on the whole batch."""

        @tf.function(autograph=False)
        def step() -> Any:
            with tf.GradientTape() as tape, AssignmentScope(_read(self._weights)):
                y_pred = self._model(batch.x, training=True)
                loss = tf.reduce_sum(self._loss(batch, y_pred))
            return loss, _dense(tape.gradient(loss, [v.value for v in self._weights]))

        return LossAndGradients(*step())

    def _step_in_parts(self, batch: Batch) -> LossAndGradients:
        """The user's own model on each micro-batch; the loss of all outputs at once."""

        @tf.function(autograph=False)
        def step() -> Any:
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(self._loss_of_parts(batch))
            return loss, _dense(tape.gradient(loss, [v.value for v in self._weights]))

        return LossAndGradients(*step())

    def _loss_of_parts(self, batch: Batch) -> tf.Tensor:
        weights, state = _read(self._weights), self._pipeline.state(batch)
        variables = [v for stage in self._pipeline.stages for v in stage.state]
        carried: IdentityMap[keras.Variable, tf.Tensor] = IdentityMap()
        outputs, added = [], []
        for index, x in enumerate(micro_batches.split(batch.x, batch.sizes)):
            start = IdentityMap((v, state.read(v, index)) for v in variables)
            start.update(carried)
            with AssignmentScope([*start.items(), *weights]) as scope:
                outputs.append(self._model(x, training=True))
                added += self._shares(batch, index, self._rules(x), scope.losses)
            carried.update((v, x) for v, x in scope.assigned.items() if state.passes_on(v))
        with AssignmentScope(weights):
            return self._loss(batch, merge_masked(outputs, batch.sizes)) + sum(added, 0.0)

    def _loss(self, batch: Batch, y_pred: Value) -> tf.Tensor:
        return self._model.compute_loss(batch.x, batch.y, y_pred, batch.sample_weight)

    def _rules(self, x: Value) -> list[str]:
        """For each loss that layers add, the rule by which micro-batches make it up."""
        calls, rules = self._pipeline.calls, []
        values = dict(zip(calls.inputs, calls.standardize(x)))
        with AssignmentScope(_read(self._weights)) as scope:
            for call in calls.calls:
                num_before = len(scope.losses)
                read = [values[number] for number in call.inputs]
                values.update(zip(call.outputs, call.run(read, True)))
                for place in range(len(scope.losses) - num_before):
                    added = LossCall(call, read, place)
                    rules.append(self._compiled.added_rule(added, training=True))
        return rules

    def _shares(
        self, batch: Batch, index: int, rules: Sequence[str], losses: Sequence[tf.Tensor]
    ) -> list[tf.Tensor]:
        sizes = batch.sizes
        shares = [sizes.is_used(index) if rule == ONE else sizes.share(index) for rule in rules]
        return [tf.reduce_sum(x) * as_tensor(share, x.dtype) for x, share in zip(losses, shares)]

    def _compare(self, split: LossAndGradients, plain: LossAndGradients) -> Comparison:
        pairs = zip(self._weights, split.gradients, plain.gradients)
        return Comparison(
            loss=_difference("loss", split.loss, plain.loss),
            gradients=tuple(_difference(weight.path, one, other) for weight, one, other in pairs),
        )


def _read(weights: Sequence[keras.Variable]) -> list[tuple[keras.Variable, tf.Tensor]]:
    """The weights by their values, which is how regularizers read them inside a scope."""
    return [(weight, tf.convert_to_tensor(weight.value)) for weight in weights]


def _difference(name: str, value: Any, reference: Any) -> Difference:
    if value is None and reference is None:
        return Difference(name, 0.0, 0.0)
    if value is None or reference is None:
        return Difference(name, float("inf"), float("inf"))
    value, reference = np.asarray(value, "float64"), np.asarray(reference, "float64")
    absolute = float(np.max(np.abs(value - reference), initial=0.0))
    largest = float(np.max(np.abs(reference), initial=0.0))
    return Difference(name, absolute, absolute / largest if largest else absolute)


def _dense(gradients: Sequence[Gradient]) -> list[tf.Tensor | None]:
    return [None if g is None else tf.convert_to_tensor(g) for g in gradients]


def _to_tensors(value: Value) -> Value:
    """Arrays as `fit` would take them: numbers of any float type in Keras's own."""

    def convert(leaf: Any) -> Any:
        if leaf is None or tf.is_tensor(leaf):
            return leaf
        leaf = np.asarray(leaf)
        return tf.convert_to_tensor(
            leaf, keras.backend.floatx() if leaf.dtype.kind == "f" else None
        )

    return tree.map_structure(convert, value)
