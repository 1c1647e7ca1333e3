"""One of several processes that train together: `python worker.py INDEX TASK DIRECTORY ...`.

Run by the tests; it is not a test itself. The processes find each other through TF_CONFIG.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ["CUDA_VISIBLE_DEVICES"] = "-1"

import keras
import numpy as np
import pytest
import tensorflow as tf
from fake_clock import FakeClock

import keras_mgpu as km
from keras_mgpu.checkpoints.saver import CheckpointError
from keras_mgpu.monitoring import poll_schedule


def make_model():
    """Without dropout: Keras cannot train it under CentralStorageStrategy."""
    inputs = keras.Input((8,))
    x = keras.layers.Dense(6, activation="relu", name="first")(inputs)
    x = keras.layers.LayerNormalization(name="norm")(x)
    x = keras.layers.Dense(5, name="second")(x)
    x = keras.layers.Dense(4, name="third")(x)
    outputs = keras.layers.Dense(3, name="last")(x)
    model = keras.Model(inputs, outputs)
    model.compile("adam", "mse", metrics=["mae"])
    return model


def values_of(model):
    """Weights and slots by a name that does not depend on who trains."""
    from keras_mgpu.checkpoints.variables import variables_of

    return {key: each.numpy() for key, each in variables_of(model, model.optimizer).items()}


def coordinated(resolver):
    """With parameter servers: the coordinator, a model, and its step as a function."""
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    keras.utils.set_random_seed(0)
    with strategy.scope():
        model = make_model()
        model.optimizer.build(model.trainable_variables)
    on_replica = make_replica_step(model)
    return coordinator, model, tf.function(lambda x, y: strategy.run(on_replica, (x, y)))


def make_replica_step(model):
    def on_replica(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x, training=True) - y))
        weights = model.trainable_variables
        model.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))
        return loss

    return on_replica


def make_step(strategy, model):
    on_replica = make_replica_step(model)

    @tf.function
    def step(x, y):
        return strategy.reduce("MEAN", strategy.run(on_replica, (x, y)), axis=None)

    return step


def batch(number):
    rng = np.random.default_rng(number)
    x = rng.standard_normal((4, 8)).astype("float32")
    return x, rng.standard_normal((4, 3)).astype("float32")


def topologies(strategy, directory):
    """Writes a checkpoint, then reads those of all others, and stores the values."""
    with strategy.scope():
        model = make_model()
        model.optimizer.build(model.trainable_variables)
    step = make_step(strategy, model)
    for number in range(3):
        step(*batch(number))
    km.save_checkpoint(directory / "2 workers", model, worker_timeout=60)
    np.savez(directory / "2 workers.npz", **values_of(model))
    for name in json.loads((directory / "others.json").read_text()):
        if km.restore_checkpoint(directory / name, model) is None:
            raise SystemExit(f"nothing was restored from {name}")
        np.savez(
            directory / f"{name} read by {strategy.cluster_resolver.task_id}.npz",
            **values_of(model),
        )


def loop(strategy, directory, num_epochs, save_freq="2"):
    """A custom loop that is driven through callbacks and says how far it is."""
    keras.utils.set_random_seed(0)
    with strategy.scope():
        model = make_model()
        model.optimizer.build(model.trainable_variables)
    x, y = (np.concatenate(parts) for parts in zip(*(batch(number) for number in range(8))))
    data = km.resumable(x, y, batch_size=4, seed=strategy.cluster_resolver.task_id)
    checkpoint = km.DistributedCheckpoint(
        directory / "loop", save_freq=int(save_freq), data=data, worker_timeout=60
    )
    callbacks = keras.callbacks.CallbackList([checkpoint], model=model, add_history=True)
    step = make_step(strategy, model)
    callbacks.on_train_begin()
    log = directory / f"loop {strategy.cluster_resolver.task_id}.txt"
    for epoch in range(checkpoint.initial_epoch, int(num_epochs)):
        callbacks.on_epoch_begin(epoch)
        for number, (one, other) in enumerate(data):
            callbacks.on_train_batch_begin(number)
            loss = step(one, other)
            callbacks.on_train_batch_end(number, {"loss": float(loss)})
            with log.open("a") as file:
                file.write(f"{int(model.optimizer.iterations.numpy())}\n")
            time.sleep(0.05)
        callbacks.on_epoch_end(epoch, {"loss": float(loss)})
    callbacks.on_train_end()
    np.savez(directory / f"loop {strategy.cluster_resolver.task_id}.npz", **values_of(model))


def die(strategy, directory):
    """Saves once; then one worker dies before it has written its part of the next."""
    with strategy.scope():
        model = make_model()
        model.optimizer.build(model.trainable_variables)
    step = make_step(strategy, model)
    step(*batch(0))
    km.save_checkpoint(directory / "die", model, worker_timeout=60)
    step(*batch(1))
    if strategy.cluster_resolver.task_id == 1:
        while not (directory / "saving").exists():  # The other may still be taking its step.
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)
    (directory / "saving").touch()
    try:
        km.save_checkpoint(directory / "die", model, worker_timeout=0.5)
    except CheckpointError as error:
        (directory / "error.txt").write_text(str(error))
    os.kill(os.getpid(), signal.SIGKILL)  # Without its neighbour it could not end in peace.


def placement(strategy, directory):
    """Reports where its layers run."""
    with strategy.scope():
        model = make_model()
        model.optimizer.build(model.trainable_variables)
    step = make_step(strategy, model)
    logger = km.DevicePlacementLogger(directory, verbose=0, step=step)
    callbacks = keras.callbacks.CallbackList([logger], model=model)
    callbacks.on_train_begin()
    for number in range(2):
        callbacks.on_train_batch_begin(number)
        step(*batch(number))
        callbacks.on_train_batch_end(number)
    callbacks.on_train_end()


def metrics(strategy, directory):
    """Logs what it does. Worker 1 is slow at first, worker 0 later, each by a clock of its own."""
    with strategy.scope():
        model = make_model()
        model.optimizer.build(model.trainable_variables)
    step = make_step(strategy, model)
    clock = FakeClock().install(pytest.MonkeyPatch())
    poll_schedule.CATCH_UP_SECONDS = 0.1  # They compare themselves whenever they write.
    logger = km.GPUMetrics(directory, interval=0.1)
    callbacks = keras.callbacks.CallbackList([logger], model=model)
    callbacks.on_train_begin()
    me = strategy.cluster_resolver.task_id
    for number in range(40):
        is_slow = me == (number < 20)
        clock.advance(0.05 if is_slow else 0.0)
        callbacks.on_train_batch_begin(number)
        step(*batch(number))
        clock.advance(0.0 if is_slow else 0.05)
        callbacks.on_train_batch_end(number)
    callbacks.on_train_end()


def different(strategy, directory):
    """Worker 1 has another activation, which does not change any shape."""
    km.enable_multi_worker_fit()
    is_other = strategy.cluster_resolver.task_id == 1
    with strategy.scope():
        inputs = keras.Input((8,))
        x = keras.layers.Dense(4, activation="tanh" if is_other else "relu")(inputs)
        model = keras.Model(inputs, keras.layers.Dense(3)(x))
        model.compile("adam", "mse")
    checkpoint = km.DistributedCheckpoint(directory / "different", save_freq=2, worker_timeout=20)
    x, y = (np.concatenate(parts) for parts in zip(*(batch(number) for number in range(8))))
    model.fit(x, y, batch_size=8, epochs=20, verbose=0, callbacks=[checkpoint])


def disagree(strategy, directory):
    """Worker 1 saves at other steps than worker 0."""
    km.enable_multi_worker_fit()
    with strategy.scope():
        model = make_model()
    save_freq = 2 + strategy.cluster_resolver.task_id
    checkpoint = km.DistributedCheckpoint(
        directory / "disagree", save_freq=save_freq, worker_timeout=5
    )
    x, y = (np.concatenate(parts) for parts in zip(*(batch(number) for number in range(8))))
    model.fit(x, y, batch_size=8, epochs=20, verbose=0, callbacks=[checkpoint])


def statistics(strategy, directory):
    """Each worker has its own: in a whole run, in one in two parts, and read by somebody else."""
    km.enable_multi_worker_fit()
    x = np.arange(16 * 8, dtype="float32").reshape(16, 8)
    x *= 1 + x / 64

    def make():
        keras.utils.set_random_seed(0)
        layers = [keras.layers.BatchNormalization(name="norm"), keras.layers.Dense(3)]
        model = keras.Sequential([keras.Input((8,)), *layers])
        model.compile("sgd", "mse")
        return model

    def of(model):
        norm = model.get_layer("norm")
        both = {"mean": norm.moving_mean, "variance": norm.moving_variance}
        return {name: np.array(each).tolist() for name, each in both.items()}

    found = {}
    for name, epochs in (("whole", 2), ("parts", 1), ("parts", 2)):
        with strategy.scope():
            model = make()
        data = km.resumable(x, x[:, :3] / x.max(), batch_size=8, shuffle=False)
        checkpoint = km.DistributedCheckpoint(directory / name, worker_timeout=60)
        options = {"validation_data": (x, x[:, :3]), "validation_batch_size": 8, "verbose": 0}
        history = model.fit(data, epochs=epochs, callbacks=[checkpoint], **options)
        found[name] = {**of(model), "losses": history.history["val_loss"]}
    fresh = make()
    fresh.optimizer.build(fresh.trainable_variables)
    km.restore_checkpoint(directory / "whole", fresh)
    found["fresh"] = of(fresh)
    (directory / f"{strategy.cluster_resolver.task_id}.json").write_text(json.dumps(found))


TASKS = {
    "statistics": statistics,
    "topologies": topologies,
    "loop": loop,
    "die": die,
    "placement": placement,
    "metrics": metrics,
    "different": different,
    "disagree": disagree,
}


def main(task, directory, *options):
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    TASKS[task](strategy, Path(directory), *options)


if __name__ == "__main__":
    main(*sys.argv[1:])
