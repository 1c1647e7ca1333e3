"""One step split and one unsplit from the same state: are the numbers Keras's own?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import tree

from keras_mgpu.model.layer_calls import Value
from keras_mgpu.pipeline import micro_batches
from keras_mgpu.pipeline.loss.loss_head import merge_masked
from keras_mgpu.pipeline.loss.loss_terms import ONE
from keras_mgpu.pipeline.micro_batches import Batch
from keras_mgpu.pipeline.stage.stage_function import AssignmentScope

WHOLE_BATCH = "plain Keras, whole batch"
SAME_MICRO_BATCHES = "plain Keras, same micro-batches"


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
class VerifyReport:
    """What `PipelineSplit.verify` found.

    Attributes:
        loss: The difference of the loss.
        gradients: The difference of every variable's gradient.
        reference: What the split step was compared with. Layers that draw random numbers or
            normalize over the batch depend on how it is cut; for models with such layers, plain
            Keras runs on the same micro-batches.
    """

    loss: Difference
    gradients: tuple[Difference, ...]
    reference: str

    @property
    def max_absolute(self) -> float:
        """The largest absolute difference of all; not a number if any is."""
        return float(np.max([each.absolute for each in (self.loss, *self.gradients)]))

    @property
    def max_relative(self) -> float:
        """The largest relative difference of all; not a number if any is."""
        return float(np.max([each.relative for each in (self.loss, *self.gradients)]))

    def __str__(self) -> str:
        rows = [self.loss, *self.gradients]
        width = max(len(each.name) for each in rows)
        lines = [f"{'':{width}}  {'absolute':>9}  {'relative':>9}"]
        lines += [f"{r.name:{width}}  {r.absolute:9.2e}  {r.relative:9.2e}" for r in rows]
        return "\n".join([f"Differences from {self.reference}:", *lines])


def verify(split: Any, x: Value, y: Value, sample_weight: Value) -> VerifyReport:
    """See `PipelineSplit.verify`."""
    x, y, sample_weight = (_to_tensors(value) for value in (x, y, sample_weight))
    weights = split.trainable_weights
    metrics = [variable for metric in split.metrics for variable in metric.variables]
    before = [variable.numpy() for variable in metrics]

    @tf.function(autograph=False)
    def split_step(x: Value, y: Value, sample_weight: Value) -> Any:
        batch = split._pipeline.cut("train", x, y, sample_weight)
        loss, gradients, _ = split._loss_and_gradients(batch, weights)
        return tf.reduce_sum(loss), _dense(gradients)

    loss, gradients = split_step(x, y, sample_weight)
    for variable, value in zip(metrics, before):
        variable.assign(value)
    scale = 1.0 if split.optimizer is None else split.optimizer.scale_loss(tf.ones(()))
    reference = _Reference(split, split._pipeline.cut("train", x, y, sample_weight))
    plain_loss, plain_gradients = reference.step(weights)
    differences = [
        _difference(weight.path, None if g is None else g / scale, plain)
        for weight, g, plain in zip(weights, gradients, plain_gradients)
    ]
    return VerifyReport(_difference("loss", loss, plain_loss), tuple(differences), reference.name)


class _Reference:
    """The unsplit step: the user's own model, its own `compute_loss`, one tape."""

    def __init__(self, split: Any, batch: Batch) -> None:
        self._split = split
        self._batch = batch
        self.name = WHOLE_BATCH

    def step(self, weights: list[keras.Variable]) -> tuple[tf.Tensor, list[Any]]:
        batch = self._batch

        @tf.function(autograph=False)
        def whole() -> Any:
            with tf.GradientTape() as tape, AssignmentScope(_read(weights)) as scope:
                y_pred = self._split.model(batch.x, training=True)
                self.name = SAME_MICRO_BATCHES if self._depends_on_cut(scope) else WHOLE_BATCH
                loss = tf.reduce_sum(self._loss(y_pred))
            return loss, _dense(tape.gradient(loss, [v.value for v in weights]))

        @tf.function(autograph=False)
        def in_micro_batches() -> Any:
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(self._loss_of_parts(_read(weights)))
            return loss, _dense(tape.gradient(loss, [v.value for v in weights]))

        traced = whole.get_concrete_function()
        return traced() if self.name == WHOLE_BATCH else in_micro_batches()

    def _depends_on_cut(self, scope: AssignmentScope) -> bool:
        return self._split.micro_batches > 1 and bool(scope.variables)

    def _loss(self, y_pred: Value) -> tf.Tensor:
        batch = self._batch
        return self._split.model.compute_loss(batch.x, batch.y, y_pred, batch.sample_weight)

    def _loss_of_parts(self, weights: list[tuple[keras.Variable, tf.Tensor]]) -> tf.Tensor:
        """Forward in the same micro-batches, same seeds; the loss of all outputs at once."""
        split, batch = self._split, self._batch
        state = split._pipeline.state(batch)
        seeds = [v for stage in split.stages for v in stage.state if v.name.endswith("state")]
        outputs, added = [], []
        for index, x in enumerate(micro_batches.split(batch.x, batch.sizes)):
            mapping = [(v, state.read(v, index)) for v in seeds]
            with AssignmentScope([*mapping, *weights]) as scope:
                outputs.append(split.model(x, training=True))
                added += self._shares(index, scope.losses)
        with AssignmentScope(weights):
            return self._loss(merge_masked(outputs, batch.sizes)) + sum(added, 0.0)

    def _shares(self, index: int, losses: list[tf.Tensor]) -> list[tf.Tensor]:
        rules = list(self._split._compiled._added_rules.values())
        sizes = self._batch.sizes
        shares = [sizes.is_used(index) if rule == ONE else sizes.share(index) for rule in rules]
        return [tf.reduce_sum(x) * tf.cast(share, x.dtype) for x, share in zip(losses, shares)]


def _read(weights: list[keras.Variable]) -> list[tuple[keras.Variable, tf.Tensor]]:
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


def _dense(gradients: list[Any]) -> list[Any]:
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
