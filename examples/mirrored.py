"""The whole model on every device, each with its part of the batch, with all callbacks.

python examples/mirrored.py
tensorboard --logdir mirrored_run
"""

import argparse
import os
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import tensorflow as tf
from keras import layers
from sklearn.datasets import load_digits

import keras_mgpu as km


def main():
    options = parse_options()
    devices = km.pick_devices(options.devices)
    folder = Path(options.folder)
    x, y = load_digits(return_X_y=True)
    if options.tiny:
        x, y = x[:256], y[:256]

    keras.utils.set_random_seed(0)
    strategy = tf.distribute.MirroredStrategy(devices)
    with strategy.scope():
        model = make_model()
        model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    # The batch size is the total over all devices.
    data = km.resumable(x.astype("float32") / 16, y, batch_size=32 * len(devices), seed=0)
    model.fit(
        data,
        epochs=2 if options.tiny else 10,
        shuffle=False,  # `resumable` shuffles already.
        verbose=2,
        callbacks=[
            km.DistributedCheckpoint(folder / "checkpoints"),
            km.DevicePlacementLogger(folder / "logs"),
            km.GPUMetrics(folder / "logs"),
            keras.callbacks.TensorBoard(folder / "logs"),
        ],
    )
    print(f"\nView it with: tensorboard --logdir {folder}")


def make_model():
    return keras.Sequential(
        [
            keras.Input((64,)),
            layers.Reshape((8, 8, 1)),
            layers.Conv2D(32, 3, activation="relu"),
            layers.Conv2D(32, 3, activation="relu"),
            layers.Flatten(),
            layers.Dropout(0.3),
            layers.Dense(10, activation="softmax"),
        ]
    )


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--devices", type=int, default=2, help="number of devices (default: 2)")
    parser.add_argument(
        "--folder", default="mirrored_run", help="output folder (default: mirrored_run)"
    )
    parser.add_argument("--tiny", action="store_true", help="few images, for tests")
    return parser.parse_args()


if __name__ == "__main__":
    main()
