"""Makes resumable data of arrays, of a `tf.data.Dataset`, or of a `PyDataset`."""

from __future__ import annotations

import itertools
import logging
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import tree

from keras_mgpu.checkpoints.resumable_dataset import ResumableDataset

logger = logging.getLogger("keras_mgpu")


def resumable(
    x: Any,
    y: Any = None,
    sample_weight: Any = None,
    *,
    batch_size: int | None = None,
    shuffle: bool | None = None,
    seed: int | None = None,
) -> ResumableDataset:
    """Makes data for `fit` whose position `DistributedCheckpoint` saves and restores.

    Example:

    ```python
    data = keras_mgpu.resumable(x, y, batch_size=32, seed=1)
    model.fit(data, epochs=10, callbacks=[keras_mgpu.DistributedCheckpoint("checkpoints")])
    ```

    Arrays are shuffled again in each pass, depending only on the seed and the number of the pass.
    A `tf.data.Dataset` continues by skipping what was trained. Its own `shuffle` gives the same
    order if it has a seed, such as one from `keras.utils.set_random_seed`. The `on_epoch_end` of
    a `PyDataset` is called as often as in the run that is continued.

    Args:
        x: Arrays or nested structures of them, a `tf.data.Dataset` of batches, or a
            `keras.utils.PyDataset`.
        y: Targets. Only with arrays.
        sample_weight: Weights. Only with arrays.
        batch_size: Samples per batch. Only with arrays. Defaults to 32.
        shuffle: Whether to shuffle. Only with arrays. Defaults to `True`.
        seed: Seed of the order. Only with arrays. Defaults to one drawn from NumPy, which
            `keras.utils.set_random_seed` determines. It is saved with the position.

    Returns:
        A `tf.data.Dataset` of batches.
    """
    if isinstance(x, (tf.data.Dataset, keras.utils.PyDataset)):
        given = {
            "y": y,
            "sample_weight": sample_weight,
            "batch_size": batch_size,
            "shuffle": shuffle,
            "seed": seed,
        }
        extra = [name for name, value in given.items() if value is not None]
        if extra:
            raise ValueError(
                f"`{extra[0]}` can only be given with arrays, not with a {type(x).__name__}. "
                f"Received: {extra[0]}={given[extra[0]]!r}"
            )
        return _of_dataset(x) if isinstance(x, tf.data.Dataset) else _of_py_dataset(x)
    if batch_size is None:
        batch_size = 32
    if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
        raise ValueError(
            f"`batch_size` must be a positive integer. Received: batch_size={batch_size!r}"
        )
    if seed is None:
        seed = int(np.random.randint(2**31))
    data = keras.utils.pack_x_y_sample_weight(x, y, sample_weight)
    return _of_arrays(data, batch_size, shuffle is not False, seed)


def _of_arrays(data: Any, batch_size: int, shuffle: bool, seed: int) -> ResumableDataset:
    with tf.device("/CPU:0"):
        tensors = tree.map_structure(_to_tensor, data)
    lengths = {int(tensor.shape[0]) for tensor in tree.flatten(tensors)}
    if len(lengths) != 1:
        raise ValueError(
            f"All arrays must have the same number of samples. Received: {sorted(lengths)} samples"
        )
    (num_samples,) = lengths
    num_batches = -(-num_samples // batch_size)

    def make_pass(number: tf.Tensor, batch: tf.Tensor, seed: tf.Tensor) -> tf.data.Dataset:
        order = tf.range(num_samples, dtype=tf.int64)
        if shuffle:
            order = tf.random.experimental.stateless_shuffle(order, tf.stack([seed, number]))

        def take(index: tf.Tensor) -> Any:
            rows = order[index * batch_size : (index + 1) * batch_size]
            return tree.map_structure(lambda tensor: tf.gather(tensor, rows), tensors)

        batches = tf.data.Dataset.range(batch, num_batches)
        return batches.map(take, num_parallel_calls=tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)

    return ResumableDataset(make_pass, num_batches, seed=seed)


def _to_tensor(array: Any) -> tf.Tensor:
    """Casts floating point arrays to Keras's default type, as `fit` does."""
    tensor = tf.convert_to_tensor(array)
    return tf.cast(tensor, keras.config.floatx()) if tensor.dtype.is_floating else tensor


def _of_dataset(dataset: tf.data.Dataset) -> ResumableDataset:
    made = itertools.count()

    def prepare(number: int) -> None:
        # A dataset that shuffles draws a seed for each iterator made from it. So the iterator for
        # pass 3 must be the fourth.
        mine = next(made)
        if mine > number:
            logger.warning(
                "The dataset was already iterated over %d times. If it shuffles, pass %d will "
                "have another order than before. To repeat the order, create the dataset again.",
                mine,
                number,
            )
        for _ in range(mine, number):
            iter(dataset)
            next(made)

    cardinality = int(dataset.cardinality())
    return ResumableDataset(
        lambda number, batch, seed: dataset.skip(batch),
        cardinality if cardinality >= 0 else None,
        prepare,
    )


def _of_py_dataset(dataset: keras.utils.PyDataset) -> ResumableDataset:
    num_ended = 0
    num_batches = dataset.num_batches
    specs = _specs(dataset)

    def prepare(number: int) -> None:
        nonlocal num_ended
        while num_ended < number:
            dataset.on_epoch_end()
            num_ended += 1

    def get(index: int) -> list[np.ndarray]:
        return [
            np.asarray(leaf, spec.dtype.as_numpy_dtype)
            for leaf, spec in zip(tree.flatten(dataset[int(index)]), tree.flatten(specs))
        ]

    def take(index: tf.Tensor) -> Any:
        flat = tree.flatten(specs)
        leaves = tf.numpy_function(get, [index], [spec.dtype for spec in flat])
        for leaf, spec in zip(leaves, flat):
            leaf.set_shape(spec.shape)
        return tree.pack_sequence_as(specs, list(leaves))

    def make_pass(number: tf.Tensor, batch: tf.Tensor, seed: tf.Tensor) -> tf.data.Dataset:
        end = tf.int64.max if num_batches is None else num_batches
        batches = tf.data.Dataset.range(batch, end)
        return batches.map(take, num_parallel_calls=max(1, dataset.workers)).prefetch(
            dataset.max_queue_size
        )

    return ResumableDataset(make_pass, num_batches, prepare)


def _specs(dataset: keras.utils.PyDataset) -> Any:
    """Types and shapes of a batch. Sizes that differ in the last batch are left open."""
    first = dataset[0]
    last = dataset[dataset.num_batches - 1] if dataset.num_batches else dataset[1]

    def spec(one: Any, other: Any) -> tf.TensorSpec:
        one, other = np.asarray(one), np.asarray(other)
        sizes = [a if a == b else None for a, b in zip(one.shape, other.shape)]
        return tf.TensorSpec([None, *sizes[1:]] if sizes else [], tf.as_dtype(one.dtype))

    return tree.map_structure(spec, first, last)
