"""Small models that report where their layers ran, and TensorFlow's own word on it."""

import re

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


def compare_with_log(ops, printed):
    """The share of a report's ops that TensorFlow has logged, and those it logged elsewhere.

    Args:
        ops: The ops of layers, as dicts.
        printed: What TensorFlow printed after `tf.debugging.set_log_device_placement(True)`. Lines
            of threads that print at the same time may be lost.
    """
    logged = {}
    for name, device in re.findall(r"\b([\w./-]+): \(\w+\): (/job:\S+)", printed):
        name = re.sub(r"/(body|cond|then|else)/_\d+/", r"/\1/", name)  # Inlined loops have numbers.
        logged.setdefault(name, set()).add(device.rpartition("device:")[2])
    num_found, elsewhere = 0, []
    for op in ops:
        layer, parts = op["layer"].rpartition("/")[2], op["name"].split("/")
        # The log has names as they are inside a stage.
        names = ["/".join(parts[start:]) for start in range(len(parts))]
        found = [logged[name] for name in names if name in logged and layer in name]
        num_found += bool(found)
        elsewhere += [op] if found and found[0] != {op["got"]} else []
    return num_found / len(ops), elsewhere


def in_layers(ops):
    """Without those of no layer, whose names are not unique."""
    return [op for op in ops if not op["layer"].startswith("(")]
