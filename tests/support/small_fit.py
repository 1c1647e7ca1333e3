"""A small model that trains in no time, and steps that take as long as a test wants."""

import time

import keras
import numpy as np


def small_model(optimizer="sgd", **options):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
    model.compile(optimizer, "mse", **options)
    return model


def ones(num_samples):
    return np.ones((num_samples, 4), "float32"), np.ones((num_samples, 2), "float32")


def fit(*callbacks, num_samples=64, model=None, **options):
    """Trains in batches of four; returns the model."""
    model = model or small_model()
    x, y = ones(num_samples)
    model.fit(x, y, batch_size=4, verbose=0, callbacks=list(callbacks), **options)
    return model


class Takes(keras.callbacks.Callback):
    """Steps that take so many seconds by a fake clock, if this callback is the last one."""

    def __init__(self, clock, seconds):
        super().__init__()
        self.clock, self.seconds = clock, seconds

    def on_train_batch_begin(self, batch, logs=None):
        self.clock.advance(self.seconds)


class Sleeps(keras.callbacks.Callback):
    """Steps that take so many seconds; the run may fail in the middle of one."""

    def __init__(self, seconds=0.05, fails_at=None):
        super().__init__()
        self.seconds, self.fails_at, self.num_begun = seconds, fails_at, 0

    def on_train_batch_begin(self, batch, logs=None):
        time.sleep(self.seconds)
        self.num_begun += 1
        if self.num_begun == self.fails_at:
            raise KeyboardInterrupt
