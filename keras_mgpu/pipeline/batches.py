"""The batches that Keras gives to a function which runs steps, each read before its step.

Keras reads them inside the step, where their sizes are not known. A step that knows the size of a
full batch needs less arithmetic, and a batch that is at hand can be run again if its step fails.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf
from keras import tree

HOST = "/CPU:0"


def on_host(batch: Any) -> Any:
    """Arrays as tensors on the host, where micro-batches are sliced, and not on a GPU."""

    def convert(leaf: Any) -> Any:
        return tf.convert_to_tensor(leaf) if isinstance(leaf, np.ndarray) else leaf

    with tf.device(HOST):
        return tree.map_structure(convert, batch)


class Batches:
    """The batches of the steps that run next.

    Args:
        data: What Keras gives: an iterator, or for `predict` the batches themselves.
        are_read: Whether to read batches of a `tf.data` iterator before they are run.
    """

    def __init__(self, data: Any, *, are_read: bool) -> None:
        self.to_run = data
        self.last: Any = None
        self.are_open_in_keras = False
        if isinstance(data, (list, tuple)):
            self.to_run = [on_host(batch) for batch in data]
            self.last = self.to_run[-1] if data else None
        elif isinstance(data, tf.data.Iterator) and are_read:
            shapes = [spec.shape for spec in tf.nest.flatten(data.element_spec)]
            self.are_open_in_keras = not shapes[0].rank or shapes[0][0] is None
            first = next(data)  # Raises `StopIteration` here, and not in the generator.
            self.to_run = self._remembering(first, data)
        elif not isinstance(data, (tf.data.Iterator, tf.distribute.DistributedIterator)):
            self.to_run = self._remembering(on_host(next(data)), map(on_host, data))

    def _remembering(self, first: Any, rest: Iterator[Any]) -> Iterator[Any]:
        self.last = first
        yield first
        for batch in rest:
            self.last = batch
            yield batch
