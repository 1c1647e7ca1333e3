"""Splits a batch into micro-batches and puts results back together.

The number of micro-batches is fixed when a step is traced. The number of samples is fixed for full
batches: sizes that are known need no arithmetic while the step runs, which on GPUs would go to the
host and back. Every other size runs through one more trace that leaves it open: the last, smaller
batch, and a batch with fewer samples than micro-batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import tensorflow as tf
from keras import tree

from keras_mgpu.model.layer_calls import Value

HOST = "/CPU:0"
# Counts and shares of samples: exact for every number, and as fine as any loss.
COUNT = tf.float64
# A number of samples, or something computed from it: known while a step is traced, or not.
Number: TypeAlias = int | float | tf.Tensor


def as_tensor(number: Number, dtype: tf.DType) -> tf.Tensor:
    """A number as a tensor of this type."""
    if isinstance(number, tf.Tensor):
        return tf.cast(number, dtype)
    return tf.constant(number, dtype)


@dataclass(frozen=True, eq=False)
class BatchSizes:
    """How many samples each micro-batch has.

    Attributes:
        batch: Samples in the whole batch.
        starts: For each micro-batch, the number of its first sample.
        counts: For each micro-batch, its number of samples; 0 for one that is only there because
            the batch has too few samples. Such a one is fed some samples again, for layers to have
            something to run on, and counts for nothing.
        rows: For each micro-batch, the number of samples it is fed, at least 1.
    """

    batch: Number
    starts: tuple[Number, ...]
    counts: tuple[Number, ...]
    rows: tuple[Number, ...]

    @property
    def num_micro_batches(self) -> int:
        return len(self.counts)

    @property
    def are_known(self) -> bool:
        """Whether they are known while a step is traced. Micro-batches are equal then."""
        return isinstance(self.batch, int)

    def share(self, index: int) -> Number:
        """The share of the batch's samples that are in micro-batch `index`."""
        if self.are_known:
            return self.counts[index] / self.batch
        return tf.cast(self.counts[index], COUNT) / tf.cast(self.batch, COUNT)

    def is_used(self, index: int) -> Number:
        """1.0 if the micro-batch has samples of its own, else 0.0."""
        return 1.0 if self.are_known else tf.cast(self.counts[index] > 0, COUNT)


def equal_size(batch: Any, num_micro_batches: int) -> int | None:
    """The number of samples, if it is known and divides into equal micro-batches.

    With one micro-batch a batch is left as it is, and traced for every size as in plain Keras.
    """
    leaves = [leaf for leaf in tree.flatten(batch) if leaf is not None]
    if num_micro_batches == 1 or not all(isinstance(leaf, tf.Tensor) for leaf in leaves):
        return None
    sizes = {leaf.shape[0] if leaf.shape.rank else None for leaf in leaves}
    size = sizes.pop()
    return None if sizes or not size or size % num_micro_batches else int(size)


def equal_sizes(size: int, num_micro_batches: int, full: tf.Variable | None = None) -> BatchSizes:
    """How a batch is cut whose size is known and divides; arguments as for `sizes_of`."""
    each = size // num_micro_batches
    if full is not None:
        with tf.device(HOST):
            full.assign(tf.maximum(full, each))
    starts = tuple(index * each for index in range(num_micro_batches))
    counts = (each,) * num_micro_batches
    return BatchSizes(size, starts, counts, counts)


def open_sizes(batch: Any) -> Any:
    """The same tensors, but nothing traced with them can know their number of samples.

    So one trace serves batches, and micro-batches, of every size.
    """

    def open_size(leaf: Any) -> Any:
        if not isinstance(leaf, tf.Tensor) or not leaf.shape.rank:
            return leaf
        with tf.device(HOST):
            return tf.raw_ops.PlaceholderWithDefault(input=leaf, shape=[None, *leaf.shape[1:]])

    return batch if tf.executing_eagerly() else tree.map_structure(open_size, batch)


def sizes_of(batch: Any, num_micro_batches: int, full: tf.Variable | None = None) -> BatchSizes:
    """How a batch is cut.

    Sizes are as even as can be: the first ones take a sample more where it does not divide. For
    XLA, which compiles anew for every size, all micro-batches are full but the last, so that there
    are never more sizes than a full one has samples.

    Args:
        batch: The batch.
        num_micro_batches: Into how many micro-batches it is cut.
        full: Holds the size of a full micro-batch, the largest there was so far; `None` for even
            sizes.
    """
    first = next(leaf for leaf in tree.flatten(batch) if leaf is not None)
    indices = range(num_micro_batches)
    with tf.device(HOST):
        total = _num_samples(first)
        each, rest = total // num_micro_batches, total % num_micro_batches
        if full is None:
            starts = [index * each + tf.minimum(index, rest) for index in indices]
            counts = [each + tf.cast(index < rest, total.dtype) for index in indices]
            rows = [tf.maximum(count, 1) for count in counts]
        else:
            size = full.assign(tf.maximum(full, each + tf.minimum(rest, 1)), read_value=True)
            starts = [index * size for index in indices]
            counts = [tf.clip_by_value(total - start, 0, size) for start in starts]
            rows = [tf.where(count > 0, count, counts[0]) for count in counts]
    return BatchSizes(total, tuple(starts), tuple(counts), tuple(rows))


def split(batch: Any, sizes: BatchSizes) -> list[Any]:
    """The micro-batches of a nested structure of tensors, sliced where the data comes from."""
    with tf.device(HOST):
        return [
            tree.map_structure(lambda leaf, i=index: _slice(leaf, sizes, i), batch)
            for index in range(sizes.num_micro_batches)
        ]


def merge(micro_batches: Sequence[Any], sizes: BatchSizes) -> Any:
    """Puts outputs of micro-batches back into one batch, without those that count for nothing."""

    for part, count in zip(micro_batches, sizes.counts):
        if len(micro_batches) > 1:
            check_rows(part, count)

    def concat(*parts: tf.Tensor) -> tf.Tensor:
        used = parts
        if not sizes.are_known:
            used = tuple(part[:count] for part, count in zip(parts, sizes.counts))
        return tf.concat(used, axis=0)

    return parts_to_whole(concat, micro_batches)


def check_rows(outputs: Any, num_samples: Number) -> None:
    """Stops a step whose outputs do not have one row per sample: they could not be merged."""
    for leaf in tree.flatten(outputs):
        if isinstance(leaf, tf.Tensor) and leaf.shape.rank:
            if isinstance(num_samples, int) and leaf.shape[0] == num_samples:
                continue
            rows = tf.shape(leaf)[0]
            tf.debugging.assert_equal(
                rows,
                tf.where(num_samples > 0, num_samples, rows),
                "An output of the model does not have one row per sample, so its micro-batches "
                "cannot be put back together. Use `micro_batches=1`. Rows and samples",
            )


def parts_to_whole(concat: Any, micro_batches: Sequence[Any]) -> Any:
    if len(micro_batches) == 1:
        return micro_batches[0]
    return tree.map_structure(
        lambda *parts: None if parts[0] is None else concat(*parts), *micro_batches
    )


def _num_samples(leaf: Any) -> tf.Tensor:
    if isinstance(leaf, tf.RaggedTensor):
        return leaf.nrows(out_type=tf.int32)
    if isinstance(leaf, tf.SparseTensor):
        return tf.cast(leaf.dense_shape[0], tf.int32)
    return tf.shape(leaf)[0]


def _slice(leaf: Any, sizes: BatchSizes, index: int) -> Any:
    if leaf is None or sizes.num_micro_batches == 1:
        return leaf
    count, start = sizes.rows[index], sizes.starts[index]
    if not sizes.are_known:
        start = tf.minimum(start, sizes.batch - count)
    if isinstance(leaf, tf.SparseTensor):
        shape = leaf.dense_shape
        begin = tf.concat([[tf.cast(start, shape.dtype)], tf.zeros_like(shape[1:])], axis=0)
        size = tf.concat([[tf.cast(count, shape.dtype)], shape[1:]], axis=0)
        return tf.sparse.slice(leaf, begin, size)
    return leaf[start : start + count]


@dataclass(frozen=True, eq=False)
class Batch:
    """A batch as `fit` hands it over, whole and in micro-batches.

    Attributes:
        x: Inputs. Unless sizes are known, nothing traced with them, or with what follows, knows the
            number of samples.
        y: Targets.
        sample_weight: Weights.
        static_size: The number of samples, if it is known before the step runs.
        size_in_keras: The same, if plain Keras knew it; each loss of several is averaged by it.
        sizes: How many samples each micro-batch has.
        y_parts: The targets of each micro-batch.
        weight_parts: The weights of each.
    """

    x: Value
    y: Value
    sample_weight: Value
    static_size: int | None
    size_in_keras: int | None
    sizes: BatchSizes
    y_parts: list[Value]
    weight_parts: list[Value]

    @property
    def given(self) -> tuple[Value, Value, Value]:
        """Inputs, targets and weights."""
        return self.x, self.y, self.sample_weight

    @classmethod
    def of(
        cls,
        x: Value,
        y: Value,
        sample_weight: Value,
        num_micro_batches: int,
        full: tf.Variable | None = None,
        is_open_in_keras: bool = False,
    ) -> Batch:
        first = next(leaf for leaf in tree.flatten(x) if leaf is not None)
        whole = [x, y, sample_weight]
        size = equal_size(whole, num_micro_batches)
        if size is not None:
            sizes = equal_sizes(size, num_micro_batches, full)
        else:
            whole = [open_sizes(value) for value in whole]
            sizes = sizes_of(whole[0], num_micro_batches, full)
        y_parts, weight_parts = (split(value, sizes) for value in whole[1:])
        x, y, sample_weight = whole
        known = first.shape[0]
        in_keras = None if is_open_in_keras else known
        return cls(x, y, sample_weight, known, in_keras, sizes, y_parts, weight_parts)
