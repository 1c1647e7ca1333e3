"""A compiled loss as terms, each with the rule by which micro-batches make up the whole batch.

`compile` may be given several losses, for several outputs, with weights and reductions of their
own. A term's loss is always taken by the user's own Keras loss object. What is added here is only
how much a micro-batch's value counts, so that their sum is the whole batch's number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf
from keras import tree

from keras_mgpu.internals.keras_losses import apply_mask, loss_entries, recorded_losses
from keras_mgpu.internals.keras_masks import get_mask
from keras_mgpu.model.layer_calls import Value
from keras_mgpu.pipeline.loss.separability import (
    find_rule,
    mean_of_parts,
    parts_in_a_row,
    sum_of_parts,
)
from keras_mgpu.pipeline.micro_batches import COUNT, Number, as_tensor
from keras_mgpu.pipeline.stage.gradients import Gradient, add_gradients

# By which a micro-batch counts:
SAMPLES = "samples"  # a mean: its samples, or under a mask its valid places
WEIGHTS = "weights"  # a mean over weights: the sum of its weights
ONE = "one"  # a sum
ROWS = "rows"  # no reduction: its values stay beside the others
COUPLED = "coupled"  # in no such way: the loss needs all samples at once

RULES = {
    "sum": {ONE: sum_of_parts},
    "mean": {SAMPLES: mean_of_parts, ONE: sum_of_parts},
    "sum_over_batch_size": {SAMPLES: mean_of_parts, ONE: sum_of_parts},
    "mean_with_sample_weight": {
        SAMPLES: mean_of_parts,
        ONE: sum_of_parts,
    },
    "none": {
        ROWS: parts_in_a_row,
        SAMPLES: mean_of_parts,
        ONE: sum_of_parts,
    },
}


@dataclass(frozen=True, eq=False)
class Term:
    """One loss with what it is given.

    Attributes:
        loss: The user's loss, a Keras object.
        weight: Its `loss_weights` entry, or `None`.
        metric: What tracks its value, or `None`.
        y_true: Its labels.
        y_pred: Its predictions.
        sample_weight: Its weights, or `None`.
    """

    loss: Any
    weight: float | None
    metric: Any
    y_true: Value
    y_pred: Value
    sample_weight: Value

    def value(self) -> tf.Tensor:
        """The loss, by the user's own object."""
        value = self.loss(self.y_true, self.y_pred, self.sample_weight)
        return tf.cast(value, keras.backend.floatx())

    def mask(self) -> tf.Tensor | None:
        """Which places count: as the outputs' mask says, and the loss's own."""
        if tree.is_nested(self.y_pred):
            return None
        masks = [get_mask(self.y_pred), self._own_mask()]
        found = [tf.cast(mask, tf.bool) for mask in masks if mask is not None]
        return None if not found else tf.logical_and(found[0], found[-1])

    def divisor(self, rule: str, num_samples: Number) -> tf.Tensor:
        """What Keras divides the sum of this term's values by, but for a constant factor."""
        if rule in (ONE, ROWS):
            return tf.ones((), COUNT)
        mask = self.mask()
        if rule == WEIGHTS and (mask is not None or self.sample_weight is not None):
            weight = apply_mask(self.sample_weight, mask, dtype=COUNT.name, reduction="sum")
            return tf.reduce_sum(tf.cast(weight, COUNT))
        if mask is not None:
            return tf.reduce_sum(tf.cast(mask, COUNT))
        return as_tensor(num_samples, COUNT)

    def needs_outputs(self, rule: str) -> bool:
        """Whether the whole batch's divisor is more than a number of samples."""
        if rule in (ONE, ROWS):
            return False
        return self.mask() is not None or (rule == WEIGHTS and self.sample_weight is not None)

    def find_rule(self) -> str:
        """Which rule holds for this loss, found by trying it on random samples."""
        reduction = getattr(self.loss, "reduction", "none") or "none"
        specs = (self.y_true, self.y_pred, self.sample_weight)
        weighted = reduction == "mean_with_sample_weight" and self.sample_weight is not None
        rules = RULES.get(reduction, RULES["none"])
        if weighted:
            rules = {WEIGHTS: _weighted_mean_of_parts}
        return find_rule(self.loss, specs, rules) or COUPLED

    def _own_mask(self) -> tf.Tensor | None:
        """The mask a loss hangs on its values, such as that of `ignore_class`."""
        if type(self.loss).__call__ is not keras.Loss.__call__:
            return None
        dtype = self.loss.dtype
        y_true = tf.cast(self.y_true, dtype)
        y_pred = tf.cast(self.y_pred, dtype)
        return get_mask(self.loss.call(y_true, y_pred))


def resolve(compile_loss: Any, y_true: Value, y_pred: Value, sample_weight: Value) -> list[Term]:
    """The terms of a built `CompileLoss`, each with its own labels, predictions and weights.

    Which labels belong to which output is Keras's decision, so Keras is asked.
    """
    given = recorded_losses(compile_loss, y_true, y_pred, sample_weight)
    return [
        Term(entry.loss, entry.loss_weights, metric, *arguments)
        for (entry, metric), arguments in zip(loss_entries(compile_loss), given)
    ]


def penalty(weights: Sequence[keras.Variable]) -> tf.Tensor:
    """What weight regularizers add to the loss, once per batch."""
    zero = tf.zeros((), keras.backend.floatx())
    return sum([_penalty_of(w) for w in weights if w.regularizer is not None], zero)


def add_penalty_gradients(
    gradients: Sequence[Gradient], weights: Sequence[keras.Variable], scale: Number
) -> list[Gradient]:
    """Adds the gradients of weight regularizers, each on its weight's device."""
    totals = list(gradients)
    for index, weight in enumerate(weights):
        if weight.regularizer is not None:
            with tf.device(weight.value.device):
                with tf.GradientTape() as tape:
                    penalty = _penalty_of(weight)
                    scaled = penalty * as_tensor(scale, penalty.dtype)
                own = tape.gradient(scaled, weight.value)
                totals[index] = add_gradients([gradients[index], own])
    return totals


def _penalty_of(weight: keras.Variable) -> tf.Tensor:
    with tf.device(weight.value.device):
        return tf.cast(tf.reduce_sum(weight.regularizer(weight)), keras.backend.floatx())


def _weighted_mean_of_parts(results: Sequence[Any], parts: Sequence[Any]) -> Any:
    sums = [float(tf.reduce_sum(part[2])) for part in parts]
    return sum(result * weight for result, weight in zip(results, sums)) / sum(sums)
