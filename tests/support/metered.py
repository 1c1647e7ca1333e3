"""A run with GPUMetrics in a process of its own: `python metered.py TASK FOLDER`.

Run by tests, with a stand-in for the driver in the library path.
"""

import logging
import os
import sys
import threading
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
from small_fit import Sleeps, fit, small_model

import keras_mgpu as km

STEP_SECONDS = 0.02


def metrics(folder):
    return km.GPUMetrics(folder, interval=0.05, metrics=["gpu/temperature"])


def raising(folder):
    """A fit that fails ends the thread, and the files are closed."""

    class Fails(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 20:
                raise ValueError("enough")

    callback = metrics(folder)
    try:
        fit(callback, Sleeps(STEP_SECONDS), Fails(), num_samples=200)
    except ValueError:
        callback._monitor._thread.join(60)
    names = [thread.name for thread in threading.enumerate()]
    (folder / "threads.txt").write_text("\n".join(names))
    os._exit(0)  # What is not on disk by now is lost.


def forking(folder):
    """A process that forks in the middle: the child must neither hang nor write."""

    class Forks(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 10:
                child = os.fork()
                if child == 0:
                    os._exit(7)
                _, status = os.waitpid(child, 0)
                (folder / "child.txt").write_text(str(os.waitstatus_to_exitcode(status)))

    fit(metrics(folder), Sleeps(STEP_SECONDS), Forks(), num_samples=200)


def forgetful(folder):
    """A custom loop without `on_train_end`: files are closed when the process ends."""
    callbacks = keras.callbacks.CallbackList([metrics(folder)], model=small_model())
    callbacks.on_train_begin()
    for batch in range(20):
        callbacks.on_train_batch_begin(batch)
        time.sleep(STEP_SECONDS)
        callbacks.on_train_batch_end(batch)


TASKS = [raising, forking, forgetful]


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    {task.__name__: task for task in TASKS}[sys.argv[1]](Path(sys.argv[2]))
