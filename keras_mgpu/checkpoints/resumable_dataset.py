"""Data with a position, from which a run can continue at the very batch it was killed after.

`fit` hides its position in the data, and reads ahead. So the data is not asked for its position.
It numbers its passes, the trainer counts the batches of a pass, and both are given to a later run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import tensorflow as tf

from keras_mgpu.internals.tf_functions import variant_of


@dataclass(frozen=True)
class Position:
    """A position in the data.

    Args:
        number: Number of the pass over the data.
        batch: Batches of that pass that were trained.
        seed: Seed of the order of every pass.
        num_batches: Batches per pass; `None` if not known.
    """

    number: int = 0
    batch: int = 0
    seed: int = 0
    num_batches: int | None = None


class ResumableDataset(tf.data.Dataset):
    """A `tf.data.Dataset` that numbers its passes, and can begin the next one at any batch.

    Made by `keras_mgpu.resumable`.

    Args:
        make_pass: Called in a graph with the number of the pass, the number of its first batch,
            and the seed; returns a dataset of the rest of that pass.
        num_batches: Batches per pass; `None` if not known.
        prepare: Called with the number of a pass before it begins.
        seed: Seed of the order of every pass.
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

        # Every iteration runs this function once, and so gets its position.
        self._inner = tf.data.Dataset.from_tensors(0).flat_map(rest_of_pass)
        super().__init__(variant_of(self._inner))

    @property
    def next(self) -> Position:
        """Where the next iteration begins."""
        return self._next

    def seek(self, place: Position) -> bool:
        """Lets the next iteration begin at `place`; returns whether the position fits.

        It does not if the data has another length, or batches of another size.
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
