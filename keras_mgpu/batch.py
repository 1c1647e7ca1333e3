"""A batch as the pipeline sees it: whole, and in micro-batches."""

from __future__ import annotations

from dataclasses import dataclass

import tensorflow as tf
from keras import tree

from keras_mgpu import micro_batches
from keras_mgpu.layer_calls import Value
from keras_mgpu.micro_batches import Sizes


@dataclass(frozen=True, eq=False)
class Batch:
    """A batch as `fit` hands it over, whole and in micro-batches.

    Attributes:
        x: Inputs, of which nothing traced with them knows the number.
        y: Targets, likewise.
        sample_weight: Weights, likewise.
        static_size: The number of samples, if it is known before the step runs.
        sizes: How many samples each micro-batch has.
        y_parts: The targets of each micro-batch.
        weight_parts: The weights of each.
    """

    x: Value
    y: Value
    sample_weight: Value
    static_size: int | None
    sizes: Sizes
    y_parts: list[Value]
    weight_parts: list[Value]

    @classmethod
    def of(
        cls,
        x: Value,
        y: Value,
        sample_weight: Value,
        num_micro_batches: int,
        full: tf.Variable | None = None,
    ) -> Batch:
        first = next(leaf for leaf in tree.flatten(x) if leaf is not None)
        whole = [micro_batches.open_sizes(value) for value in (x, y, sample_weight)]
        sizes = micro_batches.sizes_of(whole[0], num_micro_batches, full)
        y_parts, weight_parts = (micro_batches.split(value, sizes) for value in whole[1:])
        x, y, sample_weight = whole
        return cls(x, y, sample_weight, first.shape[0], sizes, y_parts, weight_parts)
