"""A small pipeline to profile."""

import keras
import numpy as np

import keras_mgpu as km


def make_split(devices, schedule="1f1b", **options):
    hidden = [keras.layers.Dense(256, activation="relu") for _ in range(4)]
    model = keras.Sequential([keras.Input((16,)), *hidden, keras.layers.Dense(2)])
    split = km.PipelineSplit(model, devices[:2], micro_batches=4, schedule=schedule, **options)
    split.compile("adam", "mse")
    return split


def data(num_samples=256):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((num_samples, 16)).astype("float32")
    return x, x[:, :2]
