"""Trains with checkpoints: kill it at any time, start it again, and it resumes.

python examples/kill_and_resume.py --die-after 40   # kills itself with SIGKILL
python examples/kill_and_resume.py                  # resumes at the exact batch
keras-mgpu checkpoints resume_run/checkpoints       # lists the checkpoints
"""

import argparse
import logging
import os
import signal
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
from keras import layers

import keras_mgpu as km


def main():
    options = parse_options()
    logging.basicConfig(format="%(message)s")
    logging.getLogger("keras_mgpu").setLevel(logging.INFO)  # Logs where it resumes.
    keras.utils.set_random_seed(0)
    devices = km.pick_devices(options.devices)
    folder = Path(options.folder)

    x, y = spirals(256 if options.tiny else 4096)
    model = keras.Sequential(
        [
            keras.Input((2,)),
            layers.Dense(64, activation="relu"),
            layers.Dropout(0.1),
            layers.Dense(64, activation="relu"),
            layers.Dense(3, activation="softmax"),
        ]
    )
    if len(devices) > 1:
        model = km.PipelineSplit(model, devices, micro_batches=4)
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    history = model.fit(
        km.resumable(x, y, batch_size=32, seed=0),
        epochs=4,
        shuffle=False,  # `resumable` shuffles already.
        verbose=2,
        callbacks=[
            keras.callbacks.ReduceLROnPlateau(monitor="loss", patience=1),
            km.DistributedCheckpoint(folder / "checkpoints", save_freq=5, log_dir=folder / "logs"),
            Die(options.die_after),
        ],
    )
    print("loss of each epoch:", *(f"{loss:.6f}" for loss in history.history["loss"]))


class Die(keras.callbacks.Callback):
    """Kills the process, without a chance to clean up."""

    def __init__(self, after):
        super().__init__()
        self.left = after

    def on_train_batch_end(self, batch, logs=None):
        self.left -= 1
        if self.left == 0:
            print("Killing this process now.", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)


def spirals(num):
    """Returns points on the three arms of a spiral, and their arms as classes."""
    rng = np.random.default_rng(0)
    arm, radius = rng.integers(0, 3, num), rng.uniform(0.1, 1, num)
    angle = 2 * np.pi * arm / 3 + 5 * radius + rng.normal(0, 0.1, num)
    points = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1)
    return points.astype("float32"), arm


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--devices", type=int, default=2, help="number of devices; 1 does not split (default: 2)"
    )
    parser.add_argument(
        "--folder", default="resume_run", help="output folder (default: resume_run)"
    )
    parser.add_argument(
        "--die-after", type=int, default=0, metavar="BATCHES", help="kill itself after BATCHES"
    )
    parser.add_argument("--tiny", action="store_true", help="few points, for tests")
    return parser.parse_args()


if __name__ == "__main__":
    main()
