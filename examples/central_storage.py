"""A large embedding in host memory, used by several devices.

python examples/central_storage.py
"""

import argparse
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import tensorflow as tf
from keras import layers

import keras_mgpu as km


def main():
    options = parse_options()
    host, *devices = pick_devices(options.devices)
    num_words, width = (1_000, 8) if options.tiny else (200_000, 64)
    words, classes = texts(num_words, 512 if options.tiny else 8_192)

    keras.utils.set_random_seed(0)
    strategy = tf.distribute.experimental.CentralStorageStrategy(devices, host)
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input((16,), dtype="int32"),
                layers.Embedding(num_words, width),
                layers.GlobalAveragePooling1D(),
                layers.Dense(4, activation="softmax"),
            ]
        )
        model.compile(keras.optimizers.Adam(0.02), "sparse_categorical_crossentropy")
    model.fit(
        words,
        classes,
        batch_size=128,
        epochs=2 if options.tiny else 4,
        verbose=0,
        callbacks=[km.DevicePlacementLogger()],
    )
    # Under this strategy, the losses and metrics that Keras 3.15 reports are wrong. The weights are
    # correct.
    guesses = model.predict(words, batch_size=256, verbose=0).argmax(axis=1)
    print(f"\naccuracy: {np.mean(guesses == classes):.1%}")


def pick_devices(count):
    """Returns the host's CPU and the devices that compute."""
    if len(tf.config.list_physical_devices("GPU")) >= count:
        return ["/CPU:0", *km.pick_devices(count)]
    return km.logical_devices(count + 1)


def texts(num_words, count):
    """Returns texts and classes: the words of a text come from the quarter that is its class."""
    rng = np.random.default_rng(0)
    classes = rng.integers(0, 4, count)
    words = rng.integers(0, num_words // 4, (count, 16)) + classes[:, None] * (num_words // 4)
    return words.astype("int32"), classes


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--devices", type=int, default=2, help="number of devices that compute (default: 2)"
    )
    parser.add_argument("--tiny", action="store_true", help="a small embedding, for tests")
    return parser.parse_args()


if __name__ == "__main__":
    main()
