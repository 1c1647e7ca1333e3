"""A run in its own process, which reports its progress and may be killed at any time."""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ["CUDA_VISIBLE_DEVICES"] = "-1"

import keras
import numpy as np
import runs
import simulated

import keras_mgpu as km

if simulated.NUM_GPUS:
    simulated.start()


class Tell(keras.callbacks.Callback):
    def __init__(self, step):
        super().__init__()
        self._step = step

    def on_train_begin(self, logs=None):
        self._step.value = int(self.model.optimizer.iterations.numpy())

    def on_train_batch_end(self, batch, logs=None):
        self._step.value += 1


@simulated.without_xla()
def live(directory, result, step, epochs, save_freq):
    """Trains from wherever `directory` leads to the end; leaves the outcome in `result`."""
    runs.fresh()
    callbacks = [] if directory is None else [km.DistributedCheckpoint(directory, save_freq)]
    model = runs.make_model(run_eagerly=False)
    history = model.fit(
        runs.make_data(),
        epochs=epochs,
        callbacks=[*callbacks, Tell(step)],
        verbose=0,
        shuffle=False,
    )
    found = runs.outcome(model, history)
    np.savez(result, *found["variables"], **{f"history_{k}": v for k, v in history.history.items()})


def limited(directory, result, num_bytes):
    """Trains while no file may be larger than `num_bytes`: what a full disk does."""
    import resource

    unlimited = resource.RLIM_INFINITY
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, unlimited))
    model = runs.make_model()
    try:
        model.fit(
            runs.make_data(),
            epochs=2,
            callbacks=[km.DistributedCheckpoint(directory)],
            verbose=0,
            shuffle=False,
        )
    except Exception as error:
        resource.setrlimit(resource.RLIMIT_FSIZE, (unlimited, unlimited))
        with open(result, "w") as file:
            file.write(f"{type(error).__name__}: {error}")
