"""Trains a pipeline with TensorFlow's own placement log: `python placement_log.py OPS.json`."""

import dataclasses
import json
import os
import sys

os.environ["CUDA_VISIBLE_DEVICES"] = "-1"

import keras
import numpy as np
import tensorflow as tf
from pinned import Pinned, ToText

import keras_mgpu as km


def main(path):
    devices = km.logical_devices(3)
    tf.debugging.set_log_device_placement(True)
    inputs = keras.Input((4,))
    x = keras.layers.Dense(8, activation="relu", name="first")(inputs)
    x = Pinned(8, devices[2], name="elsewhere")(x)
    x = Pinned(8, "/GPU:0", name="nowhere")(x)
    x = ToText("/GPU:0", name="text")(x)
    x = Pinned(8, "/CPU:7", name="no_such_one")(x)
    x = keras.layers.Dense(8, name="second")(x)
    outputs = keras.layers.Dense(2, name="third")(x)
    model = keras.Model(inputs, outputs)
    split = km.PipelineSplit(model, devices[:2], micro_batches=2, cuts=["nowhere"])
    split.compile("adam", "mse")
    logger = km.DevicePlacementLogger(verbose=0)
    x, y = np.ones((8, 4), "float32"), np.ones((8, 2), "float32")
    split.fit(x, y, batch_size=8, verbose=0, callbacks=[logger])
    with open(path, "w") as file:
        json.dump([dataclasses.asdict(op) for op in logger.report.ops], file)


if __name__ == "__main__":
    main(sys.argv[1])
