"""Data with a position: what lets a run go on at the very batch it was killed after.

`fit` hides where it is in its data, and reads ahead. So the data is not asked how far it is. It
numbers its passes, whoever trains counts the batches of a pass, and a later run is told both.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import tree

from keras_mgpu.internals.tf_functions import variant_of

logger = logging.getLogger("keras_mgpu")


@dataclass(frozen=True)
class Position:
    """A place in the data.

    Args:
        number: Of the pass over the data.
        batch: Batches of that pass that were trained.
        seed: What the order of every pass follows from.
        num_batches: Batches in a pass, `None` if that is not known.
    """

    number: int = 0
    batch: int = 0
    seed: int = 0
    num_batches: int | None = None


def resumable(
    x: Any,
    y: Any = None,
    sample_weight: Any = None,
    *,
    batch_size: int | None = None,
    shuffle: bool | None = None,
    seed: int | None = None,
) -> ResumableDataset:
    """Returns data for `fit` whose position `DistributedCheckpoint` saves and restores.

    Example:

    ```python
    data = keras_mgpu.resumable(x, y, batch_size=32, seed=1)
    model.fit(data, epochs=10, callbacks=[keras_mgpu.DistributedCheckpoint("checkpoints")])
    ```

    Arrays are shuffled anew in each pass, by their seed and the number of the pass alone. A
    `tf.data.Dataset` goes on where it was by skipping what was trained; its own `shuffle` comes
    out the same if it has a seed (`keras.utils.set_random_seed` gives it one). A `PyDataset` is
    told of as many ends of epochs as there were.

    Args:
        x: Arrays or nested structures of them, a `tf.data.Dataset` of batches, or a
            `keras.utils.PyDataset`.
        y: Targets, with arrays.
        sample_weight: Weights, with arrays.
        batch_size: Samples in a batch, with arrays. Defaults to 32.
        shuffle: Whether to shuffle arrays. Defaults to `True`.
        seed: Of the order of arrays. Defaults to one drawn from NumPy, which
            `keras.utils.set_random_seed` determines; it is saved with the position.
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
                f"`{extra[0]}` belongs to arrays; a {type(x).__name__} has its own. "
                f"Received: {extra[0]}={given[extra[0]]!r}"
            )
        return _of_dataset(x) if isinstance(x, tf.data.Dataset) else _of_py_dataset(x)
    if batch_size is None:
        batch_size = 32
    if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
        raise ValueError(
            f"`batch_size` must be a whole number from 1 on. Received: batch_size={batch_size!r}"
        )
    if seed is None:
        seed = int(np.random.randint(2**31))
    data = keras.utils.pack_x_y_sample_weight(x, y, sample_weight)
    return _of_arrays(data, batch_size, shuffle is not False, seed)


class ResumableDataset(tf.data.Dataset):
    """A `tf.data.Dataset` that numbers its passes and can be told where the next one begins.

    Made by `keras_mgpu.resumable`.

    Args:
        make_pass: Called in a graph with the number of the pass, of its first batch, and the seed;
            returns the dataset of what is left of that pass.
        num_batches: Batches in a pass, `None` if that is not known.
        prepare: Called with the number of a pass before it begins.
        seed: What the order of every pass follows from.
    """

    def __init__(
        self,
        make_pass: Callable[[tf.Tensor, tf.Tensor, tf.Tensor], tf.data.Dataset],
        num_batches: int | None,
        prepare: Callable[[int], None] = lambda number: None,
        seed: int = 0,
    ) -> None:
        self.num_batches = num_batches
        self.running = Position(-1, 0, seed, num_batches)
        self._next = Position(0, 0, seed, num_batches)

        def begin() -> np.ndarray:
            place = self.running = self._next
            self._next = replace(place, number=place.number + 1, batch=0)
            prepare(place.number)
            return np.array([place.number, place.batch, place.seed], np.int64)

        def rest_of_pass(_: tf.Tensor) -> tf.data.Dataset:
            place = tf.ensure_shape(tf.numpy_function(begin, [], tf.int64), [3])
            return make_pass(place[0], place[1], place[2])

        # Every iteration runs this function once, and so asks for its place.
        self._inner = tf.data.Dataset.from_tensors(0).flat_map(rest_of_pass)
        super().__init__(variant_of(self._inner))

    @property
    def next(self) -> Position:
        """Where the next iteration begins."""
        return self._next

    def seek(self, place: Position) -> bool:
        """Lets the next iteration begin at `place`; returns whether that is a place in this data.

        Data of another length, or in batches of another size, has other places.
        """
        fits = place.num_batches == self.num_batches
        if fits:
            self._next = place
        return fits

    def cardinality(self) -> tf.Tensor:
        unknown = tf.data.experimental.UNKNOWN_CARDINALITY
        number = unknown if self.num_batches is None else self.num_batches
        return tf.constant(number, tf.int64)

    def _inputs(self) -> list[tf.data.Dataset]:
        return [self._inner]

    @property
    def element_spec(self) -> Any:
        return self._inner.element_spec


def _of_arrays(data: Any, batch_size: int, shuffle: bool, seed: int) -> ResumableDataset:
    with tf.device("/CPU:0"):
        tensors = tree.map_structure(_to_tensor, data)
    lengths = {int(tensor.shape[0]) for tensor in tree.flatten(tensors)}
    if len(lengths) != 1:
        raise ValueError(
            f"All arrays must have the same number of samples. Received: {sorted(lengths)}"
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
    """As `fit` takes arrays: floating ones in Keras's own type."""
    tensor = tf.convert_to_tensor(array)
    return tf.cast(tensor, keras.config.floatx()) if tensor.dtype.is_floating else tensor


def _of_dataset(dataset: tf.data.Dataset) -> ResumableDataset:
    made = itertools.count()

    def prepare(number: int) -> None:
        # A dataset that shuffles draws a seed for each iterator that is made of it. So the one for
        # pass 3 must be the fourth.
        mine = next(made)
        if mine > number:
            logger.warning(
                "The dataset was iterated over %d times already. If it shuffles, pass %d comes "
                "in another order than before; make it anew to go back.",
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
    """Types and shapes of a batch; sizes that differ in the last batch are left open."""
    first = dataset[0]
    last = dataset[dataset.num_batches - 1] if dataset.num_batches else dataset[1]

    def spec(one: Any, other: Any) -> tf.TensorSpec:
        one, other = np.asarray(one), np.asarray(other)
        sizes = [a if a == b else None for a, b in zip(one.shape, other.shape)]
        return tf.TensorSpec([None, *sizes[1:]] if sizes else [], tf.as_dtype(one.dtype))

    return tree.map_structure(spec, first, last)
