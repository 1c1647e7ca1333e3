"""A run with GPUMetrics in a process of its own: `python metered.py TASK FOLDER`.

Run by tests, with a stand-in for the driver in the library path.
"""

import logging
import os
import sys
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np

import keras_mgpu as km


class Slow(keras.callbacks.Callback):
    """Gives each step a length."""

    def __init__(self, seconds=0.02):
        super().__init__()
        self.seconds = seconds

    def on_train_batch_begin(self, batch, logs=None):
        time.sleep(self.seconds)


def make_model():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
    model.compile("sgd", "mse")
    return model


def data(num_samples=200):
    return np.ones((num_samples, 4), "float32"), np.ones((num_samples, 2), "float32")


def fit(folder, callback, num_samples=200, **options):
    x, y = data(num_samples)
    make_model().fit(x, y, batch_size=4, verbose=0, callbacks=[callback, Slow()], **options)


def everything(folder):
    callback = km.GPUMetrics(folder, interval=0.1, metrics="all", timeline_every=None)
    fit(folder, callback, epochs=2, validation_data=data(8))


def derived(folder):
    """Metrics that are reckoned from others, which nobody asked for."""
    fit(folder, km.GPUMetrics(folder, 0.1, metrics=["gpu/energy_per_sample", "train/imbalance"]))


def clock(folder):
    """The system's clock goes back an hour; the driver goes by it, too."""
    import ctypes

    driver = ctypes.CDLL("libnvidia-ml.so.1")

    class SetsBack(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            if batch == 20:
                system = time.time
                time.time = lambda: system() - 3600
                driver.test_set_clock(ctypes.c_longlong(-3600))

    callback = km.GPUMetrics(folder, interval=0.1, timeline_every=None)
    x, y = data()
    make_model().fit(x, y, batch_size=4, verbose=0, callbacks=[callback, Slow(), SetsBack()])


def visible(folder):
    """Which GPUs are logged, for each way to choose them."""
    for listed in ("unset", "1", "2,0", "GPU-00000aa1", "1,-1,2", "", "MIG-part-2", "9"):
        os.environ["CUDA_VISIBLE_DEVICES"] = listed
        if listed == "unset":
            del os.environ["CUDA_VISIBLE_DEVICES"]
        place = folder / f"visible {listed}"
        fit(place, km.GPUMetrics(place, interval=0.1, metrics=["gpu/temperature"]), 40)


def seldom(folder):
    """One look at most in a run of five seconds."""
    callback = km.GPUMetrics(folder, interval=4.5, timeline_every=None)
    x, y = data()
    make_model().fit(x, y, batch_size=4, verbose=0, callbacks=[callback, Slow(0.1)])


def lost(folder):
    fit(folder, km.GPUMetrics(folder, interval=0.1, metrics=["gpu/temperature", "gpu/power"]))


def raising(folder):
    """A fit that fails ends the thread, and the files are closed."""
    import threading

    class Fails(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 20:
                raise ValueError("enough")

    callback = km.GPUMetrics(folder, interval=0.05)
    x, y = data()
    try:
        make_model().fit(x, y, batch_size=4, verbose=0, callbacks=[callback, Slow(), Fails()])
    except ValueError:
        time.sleep(0.5)
    names = [thread.name for thread in threading.enumerate()]
    (folder / "threads.txt").write_text("\n".join(names))
    os._exit(0)  # Whatever is not on disk by now is lost.


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

    callback = km.GPUMetrics(folder, interval=0.05, metrics=["gpu/temperature"])
    x, y = data()
    make_model().fit(x, y, batch_size=4, verbose=0, callbacks=[callback, Slow(), Forks()])


def forgetful(folder):
    """A custom loop without `on_train_end`: files are closed when the process ends."""
    model = make_model()
    callbacks = keras.callbacks.CallbackList(
        [km.GPUMetrics(folder, interval=0.05, metrics=["gpu/temperature"])], model=model
    )
    callbacks.on_train_begin()
    for batch in range(20):
        callbacks.on_train_batch_begin(batch)
        time.sleep(0.02)
        callbacks.on_train_batch_end(batch)


TASKS = [everything, derived, clock, visible, seldom, lost, raising, forking, forgetful]


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    {task.__name__: task for task in TASKS}[sys.argv[1]](Path(sys.argv[2]))
