"""Places layers by hand with `tf.device`, shows where they ran, and compares with a pipeline.

python examples/placement.py
keras-mgpu placement placement_run/by_hand placement_run/split   # shows the differences
tensorboard --logdir placement_run                               # graphs colored by device
"""

import argparse
import os
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import tensorflow as tf
from keras import layers

import keras_mgpu as km


def main():
    options = parse_options()
    devices = km.pick_devices(options.devices)
    folder = Path(options.folder)
    width = 16 if options.tiny else 512
    x = np.random.default_rng(0).standard_normal((256, width)).astype("float32")
    y = np.digitize(x[:, 0], [-0.5, 0.5])

    print("\nBy hand: each layer under `tf.device`\n")
    model = by_hand(width, devices)
    model.compile("adam", "sparse_categorical_crossentropy")
    model.fit(x, y, verbose=0, callbacks=[km.DevicePlacementLogger(folder / "by_hand")])

    print("\nWithout soft placement: TensorFlow raises an error instead of moving an op\n")
    tf.config.set_soft_device_placement(False)
    try:
        print(by_hand(width, [*devices[:-1], "/GPU:9"])(x[:1]))
    except (tf.errors.OpError, RuntimeError) as error:
        print(str(error).splitlines()[0])
    tf.config.set_soft_device_placement(True)

    print("\nThe same layers in a pipeline: gradients and slots stay with their weights\n")
    split = km.PipelineSplit(dense_layers(width, len(devices)), devices, micro_batches=4)
    split.compile("adam", "sparse_categorical_crossentropy")
    split.fit(x, y, verbose=0, callbacks=[km.DevicePlacementLogger(folder / "split")])
    km.assert_placement(split, {"block_0": devices[0], "head": devices[-1]})


class Pinned(layers.Layer):
    """Creates the weights of a layer on a device, and runs it there."""

    def __init__(self, layer, device, **options):
        super().__init__(**options)
        self.layer, self.device = layer, device

    def build(self, shape):
        with tf.device(self.device):
            self.layer.build(shape)

    def call(self, x):
        with tf.device(self.device):
            return self.layer(x)

    def compute_output_shape(self, shape):
        return self.layer.compute_output_shape(shape)


def by_hand(width, devices):
    """Places one layer per device. TensorFlow moves one op, which has no GPU kernel."""
    inputs = x = keras.Input((width,))
    for index, device in enumerate(devices):
        x = Pinned(layers.Dense(width, activation="relu"), device, name=f"block_{index}")(x)
    x = Rounded(devices[-1], name="rounded")(x)
    return keras.Model(inputs, layers.Dense(3, activation="softmax", name="head")(x))


class Rounded(layers.Layer):
    """Rounds to two digits by way of strings, which GPUs do not support."""

    def __init__(self, device, **options):
        super().__init__(**options)
        self.device = device

    def call(self, x):
        with tf.device(self.device):
            text = tf.strings.as_string(tf.stop_gradient(x), precision=2)
            return x + tf.stop_gradient(tf.strings.to_number(text) - x)

    def compute_output_shape(self, shape):
        return shape


def dense_layers(width, count):
    hidden = [layers.Dense(width, activation="relu", name=f"block_{i}") for i in range(count)]
    head = layers.Dense(3, activation="softmax", name="head")
    return keras.Sequential([keras.Input((width,)), *hidden, head])


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--devices", type=int, default=2, help="number of devices (default: 2)")
    parser.add_argument(
        "--folder", default="placement_run", help="output folder (default: placement_run)"
    )
    parser.add_argument("--tiny", action="store_true", help="narrow layers, for tests")
    return parser.parse_args()


if __name__ == "__main__":
    main()
