"""Times the steps of `fit` from outside, so that every way to train is timed alike."""

from __future__ import annotations

import statistics
import time
from typing import Any

import keras


class StepTimes(keras.callbacks.Callback):
    """Takes the time from one batch's end to the next; the first counts from the start of `fit`."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[float] = []
        self._before = 0.0

    def on_train_begin(self, logs: Any = None) -> None:
        self._before = time.perf_counter()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        now = time.perf_counter()
        self.seconds.append(now - self._before)
        self._before = now

    @property
    def first(self) -> float:
        """The first step: tracing, TensorFlow's building of the graph, and running it."""
        return self.seconds[0]

    def median(self, num_warm_up: int) -> float:
        """The median of all steps but the first ones."""
        return statistics.median(self.seconds[num_warm_up:])
