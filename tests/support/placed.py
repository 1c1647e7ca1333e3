"""Small models that report where their layers ran."""

import keras
import numpy as np

import keras_mgpu as km

PATHS = {"first", "shared", "in/dense", "in/layer_normalization", "head"}  # Of `make_nested`.


def data(num_samples=8, size=4, outputs=2):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((num_samples, size)).astype("float32")
    return x, rng.standard_normal((num_samples, outputs)).astype("float32")


def make_nested():
    """A model with a layer that is called twice, and another model inside."""
    inputs = keras.Input((4,))
    x = keras.layers.Dense(8, activation="relu", name="first")(inputs)
    shared = keras.layers.Dense(8, name="shared")
    x = shared(shared(x))
    inner = keras.Sequential([keras.layers.Dense(6), keras.layers.LayerNormalization()], name="in")
    outputs = keras.layers.Dense(2, name="head")(inner(x))
    return keras.Model(inputs, outputs, name="net")


def compiled(model, optimizer="adam", **options):
    model.compile(optimizer, "mse", jit_compile=False, **options)
    return model


def report_of(model):
    """What the callback finds in one epoch of two batches."""
    logger = km.DevicePlacementLogger(verbose=0)
    x, y = data(16)
    model.fit(x, y, batch_size=8, verbose=0, callbacks=[logger])
    return logger.report


def layers_of(report):
    return {layer.path: layer for layer in report.layers}


def edges_of(report):
    return {(edge.source, edge.target): edge for edge in report.edges}
