"""`fit` with several workers, which Keras 3.15 cannot do by itself.

Two functions of Keras's trainer fail as soon as there is a second process (keras-team/keras#20585):
one hands a whole batch to `strategy.reduce`, which takes one tensor at a time there; the other
asks it for the mean over the samples of a metric, which has none. Both are tried with a stand-in
for a cluster, and only what fails is replaced: a Keras release that works is left alone.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from keras import tree
from keras.src.backend.tensorflow import trainer

logger = logging.getLogger("keras_mgpu")


def repair_fit() -> tuple[str, ...]:
    """Replaces what fails in Keras; returns what that was, in words."""
    repaired = []
    if _hands_over_whole_batches():
        _replace_symbolic_build()
        repaired.append("building a model before the first step of `fit`")
    if _averages_metrics_over_samples():
        _replace_reduce_per_replica()
        repaired.append("the mean of metrics over workers")
    return tuple(repaired)


class _TwoWorkers(tf.distribute.MultiWorkerMirroredStrategy):
    """Stands in for a cluster, and notes what Keras asks of it. It is never connected."""

    def __init__(self) -> None:
        self._extended = self
        self.reduced: list[tuple[Any, int | None]] = []

    def _in_multi_worker_mode(self) -> bool:
        return True

    def scope(self) -> Any:
        return contextlib.nullcontext()

    def reduce(self, reduce_op: Any, value: Any, axis: int | None = None) -> Any:
        self.reduced.append((value, axis))
        return value

    def experimental_local_results(self, value: Any) -> Any:
        return (value,)


class _Values(tf.distribute.DistributedValues):
    """Stands in for a tensor: with a real one, it would be too late to form a cluster."""


class _Model:
    """As much of a model as is needed to build it."""

    def __init__(self, strategy: Any) -> None:
        self._distribute_strategy = self.distribute_strategy = strategy

    def _symbolic_build(self, data_batch: Any) -> None:
        """Nothing is built."""


def _hands_over_whole_batches() -> bool:
    cluster = _TwoWorkers()
    model, batches = _Model(cluster), [(0, 0, iter([(_Values(), _Values())]))]
    if not _runs(lambda: _Trainer._maybe_symbolic_build(model, iterator=batches)):
        return False
    return any(isinstance(value, tuple) for value, _ in cluster.reduced)


def _averages_metrics_over_samples() -> bool:
    cluster = _TwoWorkers()
    if not _runs(lambda: trainer.reduce_per_replica(object(), cluster, "auto")):
        return False
    return any(axis is not None for _, axis in cluster.reduced)


def _runs(trial: Callable[[], Any]) -> bool:
    """A Keras that cannot even be tried like this is another one than was repaired here."""
    try:
        trial()
    except Exception:
        logger.debug("This Keras could not be tried.", exc_info=True)
        return False
    return True


def _replace_symbolic_build() -> None:
    original = _Trainer._maybe_symbolic_build

    def _maybe_symbolic_build(self: Any, iterator: Any = None, data_batch: Any = None) -> None:
        strategy = self.distribute_strategy
        if iterator is not None and _has_several_workers(strategy):
            # One replica's part will do: only shapes and types are looked at.
            for _, _, batches in iterator:
                data_batch = tree.map_structure(
                    lambda value: strategy.experimental_local_results(value)[0], next(batches)
                )
                break
            iterator = None
        original(self, iterator=iterator, data_batch=data_batch)

    _Trainer._maybe_symbolic_build = _maybe_symbolic_build


def _replace_reduce_per_replica() -> None:
    original = trainer.reduce_per_replica

    def reduce_per_replica(values: Any, strategy: Any, reduction: str) -> Any:
        if reduction in ("auto", "mean") and _has_several_workers(strategy):
            return tree.map_structure(
                lambda value: strategy.reduce("MEAN", value, axis=None), values
            )
        return original(values, strategy, reduction)

    trainer.reduce_per_replica = reduce_per_replica


def _has_several_workers(strategy: Any) -> bool:
    is_multi_worker = isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy)
    return is_multi_worker and strategy.extended._in_multi_worker_mode()


_Trainer = trainer.TensorFlowTrainer
