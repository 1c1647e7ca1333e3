"""A small training run that can be interrupted, continued, and compared with another."""

import keras
import numpy as np
import tensorflow as tf

import keras_mgpu as km


def arrays(num=30, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((num, 8)).astype("float32")
    return x, rng.integers(0, 3, num)


def make_model(optimizer=None, run_eagerly=True):
    """Dropout has seeds, batch normalization has statistics, Adam has slots.

    Eagerly, so small a model trains in less time than it takes to trace it.
    """
    model = keras.Sequential(
        [
            keras.Input((8,)),
            keras.layers.Dense(16, activation="relu"),
            keras.layers.Dropout(0.3),
            keras.layers.BatchNormalization(),
            keras.layers.Dense(3),
        ]
    )
    model.compile(
        optimizer or keras.optimizers.Adam(1e-2),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        run_eagerly=run_eagerly,
    )
    return model


class PyData(keras.utils.PyDataset):
    """Shuffles itself at the end of each epoch, as people write it."""

    def __init__(self, num=30):
        super().__init__(workers=2)
        self.x, self.y = arrays(num)
        self.rng = np.random.default_rng(5)
        self.order = np.arange(num)

    def __len__(self):
        return -(-len(self.x) // 8)

    def __getitem__(self, index):
        rows = self.order[index * 8 : (index + 1) * 8]
        return self.x[rows], self.y[rows]

    def on_epoch_end(self):
        self.rng.shuffle(self.order)


def make_data(kind="arrays"):
    x, y = arrays()
    if kind == "arrays":
        return km.resumable(x, y, batch_size=8, seed=1)
    if kind == "weighted arrays":
        return km.resumable(x, y, np.linspace(0.5, 2, len(x)), batch_size=8, seed=1)
    if kind == "py_dataset":
        return km.resumable(PyData())
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(30, seed=4).batch(8)
    if kind == "unknown length":
        dataset = dataset.filter(lambda x, y: True)
    if kind == "stream":
        dataset = dataset.repeat()
    return km.resumable(dataset)


class Interrupted(Exception):
    """Raised in the middle of training."""


class InterruptAfter(keras.callbacks.Callback):
    """Ends a run after a number of batches, without notice to any callback."""

    def __init__(self, num_batches):
        super().__init__()
        self.left = num_batches

    def on_train_batch_end(self, batch, logs=None):
        self.left -= 1
        if self.left == 0:
            raise Interrupted


class InterruptValidation(keras.callbacks.Callback):
    """Ends a run after the last batch of an epoch."""

    def on_test_begin(self, logs=None):
        raise Interrupted


def train(model, data, *callbacks, epochs=3, interrupt_after=None, **options):
    """Fits; returns what there is to compare, or `None` if the run was interrupted.

    It can be interrupted after a number of batches, or before `"validation"`.
    """
    ends = [] if interrupt_after is None else [InterruptAfter(interrupt_after)]
    if interrupt_after == "validation":
        ends = [InterruptValidation()]
    try:
        history = model.fit(
            data,
            epochs=epochs,
            callbacks=[*callbacks, *ends],
            verbose=0,
            shuffle=False,
            **options,
        )
    except Interrupted:
        return None
    return outcome(model, history)


def outcome(model, history):
    inner = getattr(model, "model", model)
    return {
        "variables": [v.numpy() for v in [*inner.variables, *model.optimizer.variables]],
        "history": history.history,
        "epochs": history.epoch,
    }


def assert_same(one, other):
    """Bit for bit."""
    assert one["epochs"] == other["epochs"]
    assert one["history"] == other["history"]
    assert len(one["variables"]) == len(other["variables"])
    for a, b in zip(one["variables"], other["variables"]):
        np.testing.assert_array_equal(a, b)


def fresh(seed=3):
    """As if a new process began."""
    keras.backend.clear_session()
    keras.utils.set_random_seed(seed)
