"""One training run with all callbacks, under whatever strategy; in a test or in its own process.

`python trial.py workers FOLDER` is one of several workers; `python trial.py servers FOLDER` the
coordinator of parameter servers, or a server. `slow fit` and `slow servers` go on until they are
killed. All of them find one another through TF_CONFIG.
"""

import json
import logging
import os
import sys
import time
import warnings
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import tensorflow as tf
import worker

import keras_mgpu as km

EPOCHS, BATCHES, BATCH_SIZE = 2, 6, 8
NUM_STEPS = EPOCHS * BATCHES
UNTIL_KILLED = 1000  # epochs


def data():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((BATCHES * BATCH_SIZE, 8)).astype("float32")
    return x, rng.standard_normal((BATCHES * BATCH_SIZE, 3)).astype("float32")


def all_callbacks(folder, step=None):
    return [
        km.DistributedCheckpoint(folder / "checkpoints", save_freq=2, worker_timeout=60),
        km.DevicePlacementLogger(folder / "logs", verbose=0, step=step),
        km.GPUMetrics(folder / "logs", interval=0.05),
    ]


def fit(strategy, model, folder, more=(), epochs=EPOCHS):
    x, y = data()
    history = model.fit(
        x,
        y,
        batch_size=BATCH_SIZE,
        epochs=epochs,
        shuffle=False,
        verbose=0,
        callbacks=[*all_callbacks(folder), *more],
    )
    return history.history


def loop(strategy, model, folder, run_step=None, more=(), epochs=EPOCHS):
    """A custom loop; `run_step` calls the traced step."""
    if isinstance(model, km.PipelineSplit):
        step, run_step = None, model.train_on_batch
    else:
        step = worker.make_step(strategy, model)
        with strategy.scope():
            model.optimizer.build(model.trainable_variables)
    run_step = run_step or step
    callbacks = keras.callbacks.CallbackList(
        [*all_callbacks(folder, step), *more], model=model, add_history=True
    )
    x, y = data()
    callbacks.on_train_begin()
    for epoch in range(epochs):
        callbacks.on_epoch_begin(epoch)
        for number in range(BATCHES):
            part = slice(number * BATCH_SIZE, (number + 1) * BATCH_SIZE)
            callbacks.on_train_batch_begin(number)
            run_step(x[part], y[part])
            callbacks.on_train_batch_end(number)
        callbacks.on_epoch_end(epoch, {})
    callbacks.on_train_end()


class Pace(keras.callbacks.Callback):
    """Says that training has begun, so that somebody can kill it; takes its time meanwhile."""

    def __init__(self, folder):
        super().__init__()
        self._folder = folder

    def on_train_batch_end(self, batch, logs=None):
        time.sleep(0.1)
        (self._folder / f"running {os.getpid()}").touch()


def as_worker(how, folder):
    km.enable_multi_worker_fit()
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    if how == "slow fit":
        fit(strategy, model_of(strategy), folder, [Pace(folder)], UNTIL_KILLED)
        return
    for run in (fit, loop):  # One after the other, in the same processes.
        place = folder / run.__name__
        place.mkdir(exist_ok=True)
        model = model_of(strategy)
        history = run(strategy, model, place)
        me = strategy.cluster_resolver.task_id
        np.savez(place / f"values {me}.npz", **worker.values_of(model))
        (place / f"history {me}.json").write_text(json.dumps(history))


def model_of(strategy):
    keras.backend.clear_session()
    keras.utils.set_random_seed(0)
    with strategy.scope():
        return worker.make_model()


def as_server(how, folder):
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    if resolver.task_type != "chief":
        server = tf.distribute.Server(
            resolver.cluster_spec(), resolver.task_type, resolver.task_id, protocol="grpc"
        )
        server.join()
    coordinator, model, step = worker.coordinated(resolver)
    strategy = coordinator.strategy

    def run_step(x, y):
        coordinator.schedule(step, args=(x, y))
        coordinator.join()

    if how == "slow servers":
        loop(strategy, model, folder, run_step, [Pace(folder)], UNTIL_KILLED)
    loop(strategy, model, folder, run_step)
    np.savez(folder / "values 0.npz", **worker.values_of(model))
    os._exit(0)  # The servers are still there, and it would wait for them.


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, format="LOGGED %(levelname)s %(message)s")
    warnings.simplefilter("error", UserWarning)
    warnings.simplefilter("error", RuntimeWarning)
    run = as_server if "servers" in sys.argv[1] else as_worker
    run(sys.argv[1], Path(sys.argv[2]))
