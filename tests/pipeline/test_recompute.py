"""Recomputation: the same numbers in less memory, nothing that has a side effect done twice."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from keras_mgpu import PipelineSplit


def data():
    rng = np.random.default_rng(0)
    return rng.normal(size=(22, 6)).astype("float32"), rng.integers(0, 3, 22)


@keras.saving.register_keras_serializable("test_recompute")
class Counter(layers.Layer):
    """Counts how often its Python-visible state was moved."""

    def build(self, shape):
        self.count = self.add_weight(shape=(), initializer="zeros", trainable=False, name="count")

    def call(self, x, training=False):
        if training:
            self.count.assign_add(1.0)
        return x * 1.0


def with_state():
    inputs = keras.Input((6,))
    x = layers.Dense(8, activation="relu")(inputs)
    x = layers.BatchNormalization()(x)
    x = layers.Dropout(0.5, seed=3)(x)
    x = Counter(name="counter")(layers.Dense(8, activation="tanh")(x))
    x = layers.GaussianNoise(0.1, seed=4)(x)
    return keras.Model(inputs, layers.Dense(3)(x))


def trained(devices, **options):
    keras.backend.clear_session()
    keras.utils.set_random_seed(5)
    model = with_state()
    split = PipelineSplit(model, devices, **options)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    split.compile(keras.optimizers.SGD(0.1, momentum=0.9), loss)
    x, y = data()
    history = split.fit(x, y, batch_size=8, epochs=2, shuffle=False, verbose=0).history
    return history["loss"], {
        v.path: v.numpy() for v in (*model.weights, *model.non_trainable_variables)
    }


@functools.cache
def trained_without(devices):
    """Once for all schedules: the order of micro-batches has no part in these numbers."""
    return trained(devices, micro_batches=4)


# `"auto"` and lists only choose stages: that is shown under one schedule with ops `B` alone, and
# under one with ops `W`.
@pytest.mark.filterwarnings("ignore:Batch normalization uses", "ignore:The layer state")
@pytest.mark.parametrize(
    ("schedule", "recompute"),
    [
        ("gpipe", True),
        ("1f1b", True),
        ("1f1b", "auto"),
        ("interleaved", True),
        ("zero_bubble", True),
        ("zero_bubble", [1]),
    ],
)
def test_dropout_and_state_are_those_of_the_first_pass(schedule, recompute, devices):
    """Seeds, statistics, counters and weights end up as they do without recomputation."""
    loss, weights = trained_without(tuple(devices[:2]))
    options = {"schedule": schedule, "micro_batches": 4, "recompute": recompute}
    again_loss, again_weights = trained(devices[:2], **options)
    np.testing.assert_allclose(again_loss, loss, rtol=1e-6)
    assert again_weights.keys() == weights.keys()
    for path, value in weights.items():
        np.testing.assert_allclose(again_weights[path], value, rtol=1e-5, atol=1e-6, err_msg=path)
    assert weights["counter/count"] == 6 * 4  # Moved by every micro-batch, and by no second pass.


@pytest.mark.filterwarnings("ignore:Batch normalization uses")
def test_auto_leaves_out_stages_with_one_micro_batch_alive(devices):
    split = PipelineSplit(with_state(), devices[:3], micro_batches=4, recompute="auto")
    assert split.schedule.recomputed_stages == {0, 1}


@pytest.mark.filterwarnings("ignore:Batch normalization uses")
def test_one_micro_batch_can_be_recomputed(devices):
    keras.utils.set_random_seed(5)
    x, y = data()
    model = keras.Sequential([keras.Input((6,)), layers.Dense(8, "relu"), layers.Dense(3)])
    split = PipelineSplit(model, devices[:1], micro_batches=1, recompute=True)
    split.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    assert split.verify(x, y).max_relative < 1e-5


def test_assertions_inside_layers_run_once_each(devices):
    """A second pass that is only there for the backward must not print or assert again."""
    seen = []

    def look(x):
        tf.py_function(lambda: seen.append(1), [], [])
        return x

    inputs = keras.Input((6,))
    x = layers.Lambda(look, output_shape=(6,))(layers.Dense(6)(inputs))
    model = keras.Model(inputs, layers.Dense(3)(x))
    split = PipelineSplit(model, devices[:2], micro_batches=4, recompute=True)
    split.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    x, y = data()
    split.fit(x[:8], y[:8], batch_size=8, verbose=0)
    assert len(seen) == 4


@pytest.mark.parametrize("recompute", [[2], [-1], [True], "all", 1, ["0"]])
def test_bad_choices_are_refused(recompute, devices):
    model = keras.Sequential([keras.Input((6,)), layers.Dense(8), layers.Dense(3)])
    with pytest.raises(ValueError, match=r"`recompute` must be .* Received: recompute="):
        PipelineSplit(model, devices[:2], recompute=recompute)
