"""Dropout, batch normalization and other state of layers, over micro-batches."""

import warnings

import keras
import numpy as np
import pytest
from keras import layers, ops

from keras_mgpu import PipelineSplit

X = np.random.default_rng(0).normal(size=(21, 6)).astype("float32")
Y = np.random.default_rng(1).normal(size=(21, 2)).astype("float32")
TOKENS = np.random.default_rng(2).integers(0, 3, (21, 5))


def fresh(make):
    keras.backend.clear_session()
    keras.utils.set_random_seed(3)
    return make()


def trained(model, trainer=None, x=X, y=Y, epochs=2):
    trainer = trainer or model
    trainer.compile(keras.optimizers.SGD(0.1), "mse")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer.fit(x, y, batch_size=8, epochs=epochs, shuffle=False, verbose=0)
    return {v.path: v.numpy() for v in model.variables}


def split_trained(make, devices, micro_batches, schedule="1f1b", batch_norm="deferred", **data):
    model = fresh(make)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        split = PipelineSplit(model, devices, micro_batches, schedule, batch_norm=batch_norm)
    return trained(model, split, **data)


def assert_equal(values, expected, tolerance=1e-5):
    assert values.keys() == expected.keys()
    for path in expected:
        np.testing.assert_allclose(
            values[path], expected[path], rtol=tolerance, atol=tolerance, err_msg=path
        )


def with_dropout():
    generator = keras.random.SeedGenerator(5)
    return keras.Sequential(
        [
            keras.Input((6,)),
            layers.Dense(8, activation="tanh"),
            layers.Dropout(0.5, seed=7),
            layers.Dense(8, activation="tanh"),
            SharedNoise(generator),
            layers.Dense(8, activation="tanh"),
            SharedNoise(generator),
            layers.GaussianNoise(0.3, seed=9),
            layers.Dense(2),
        ]
    )


class SharedNoise(layers.Layer):
    """Noise from a generator that several layers share."""

    def __init__(self, generator, **kwargs):
        super().__init__(**kwargs)
        self.generator = generator

    def call(self, inputs, training=False):
        if not training:
            return inputs
        return inputs + keras.random.normal(ops.shape(inputs), stddev=0.1, seed=self.generator)


class UnseededNoise(layers.Layer):
    """Noise from Keras's global generator, which belongs to no layer."""

    def call(self, inputs, training=False):
        return inputs + keras.random.normal(ops.shape(inputs)) if training else inputs


def test_dropout_with_one_micro_batch_is_plain_keras(devices):
    expected = trained(fresh(with_dropout))
    assert_equal(split_trained(with_dropout, devices[:3], 1), expected)


def test_dropout_depends_on_seed_and_micro_batches_only(devices):
    reference = split_trained(with_dropout, devices[:1], 4)
    for used, schedule in [
        (devices[:2], "1f1b"),
        (devices[:3], "gpipe"),
        (devices[::-1], "1f1b"),
        ([devices[1]] * 3, "gpipe"),
    ]:
        assert_equal(split_trained(with_dropout, used, 4, schedule), reference)


class ShowsDrops(layers.Dropout):
    """Keeps what it returned, which in eager mode is what it dropped."""

    seen: list = []  # noqa: RUF012

    def call(self, inputs, training=False):
        outputs = super().call(inputs, training=training)
        self.seen.append(np.asarray(outputs) == 0)
        return outputs


def test_micro_batches_draw_different_numbers(devices):
    model = keras.Sequential([keras.Input((6,)), ShowsDrops(0.5, seed=1), layers.Dense(2)])
    split = PipelineSplit(model, devices[:1], micro_batches=2)
    split.compile(keras.optimizers.SGD(0.1), "mse", run_eagerly=True)
    split.train_on_batch(np.ones((8, 6)), np.ones((8, 2)))
    first, second = ShowsDrops.seen[-2:]
    assert first.shape == second.shape == (4, 6)
    assert not np.array_equal(first, second)


def test_seed_stands_where_plain_keras_leaves_it(devices):
    def seeds(values):
        return {path: value for path, value in values.items() if "seed" in path}

    expected = seeds(trained(fresh(with_dropout)))
    assert expected
    assert_equal(seeds(split_trained(with_dropout, devices[:2], 4)), expected)


def test_global_seed_differs_between_micro_batches_and_moves(devices):
    def make():
        return keras.Sequential(
            [keras.Input((6,)), layers.Dense(6), UnseededNoise(), layers.Dense(2)]
        )

    first = split_trained(make, devices[:2], 4)
    again = split_trained(make, devices[:3], 4, "gpipe")
    assert_equal(again, first)
    assert not np.allclose(
        first["sequential/dense/kernel"], trained(fresh(make))["sequential/dense/kernel"]
    )


def norm_first():
    """Its statistics depend on the data alone, so the whole batch's are known."""
    return keras.Sequential(
        [
            keras.Input((6,)),
            layers.BatchNormalization(momentum=0.7),
            layers.Dense(8, activation="tanh"),
            layers.Dense(2),
        ]
    )


def statistics(values):
    return {path: value for path, value in values.items() if "moving" in path}


@pytest.mark.parametrize("micro_batches", [1, 3, 4, 8])
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_deferred_statistics_are_the_whole_batches(devices, micro_batches, schedule):
    expected = statistics(trained(fresh(norm_first), x=X * 3 + 10))
    found = split_trained(norm_first, devices[:2], micro_batches, schedule, x=X * 3 + 10)
    assert len(expected) == 2
    assert_equal(statistics(found), expected)


def test_deferred_statistics_under_a_mask_count_valid_places_only(devices):
    def make():
        return keras.Sequential(
            [
                keras.Input((5,), dtype="int32"),
                layers.Embedding(3, 4, mask_zero=True, trainable=False),
                layers.BatchNormalization(),
                layers.GlobalAveragePooling1D(),
                layers.Dense(2),
            ]
        )

    expected = statistics(trained(fresh(make), x=TOKENS))
    assert_equal(statistics(split_trained(make, devices[:2], 4, x=TOKENS)), expected)


def test_statistics_once_a_micro_batch(devices):
    """As plain Keras would, if each micro-batch were a batch."""
    layer = layers.BatchNormalization(momentum=0.7)
    for start in range(0, 16, 2):
        layer(X[start : start + 2], training=True)
    found = split_trained(
        norm_first, devices[:2], 4, batch_norm="micro_batch", x=X[:16], y=Y[:16], epochs=1
    )
    path = "sequential/batch_normalization"
    np.testing.assert_allclose(found[f"{path}/moving_mean"], layer.moving_mean, rtol=1e-5)
    np.testing.assert_allclose(found[f"{path}/moving_variance"], layer.moving_variance, rtol=1e-5)


def test_frozen_norm_uses_its_statistics_and_keeps_them(devices):
    def make():
        model = norm_first()
        model.layers[0].trainable = False
        return model

    assert_equal(split_trained(make, devices[:2], 4), trained(fresh(make)))


def test_a_warning_names_the_layers_normalized_by_micro_batch(devices):
    with pytest.warns(UserWarning, match=r"of each micro-batch .* in batch_norm"):
        PipelineSplit(norm_first(), devices[:2], micro_batches=4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        PipelineSplit(norm_first(), devices[:2], micro_batches=1)


class Counts(layers.Layer):
    """Counts the samples it has seen in training, and how often it was called."""

    def build(self, input_shape):
        self.seen = self.add_weight(shape=(), initializer="zeros", trainable=False, name="seen")

    def call(self, inputs, training=False):
        if training:
            self.seen.assign_add(ops.cast(ops.shape(inputs)[0], "float32"))
        return inputs


@pytest.mark.parametrize("micro_batches", [1, 4, 8])
def test_other_state_passes_from_micro_batch_to_micro_batch(devices, micro_batches):
    def make():
        return keras.Sequential([keras.Input((6,)), layers.Dense(4), Counts(), layers.Dense(2)])

    expected = trained(fresh(make))
    assert expected["sequential/counts/seen"] == 42
    assert_equal(split_trained(make, devices[:2], micro_batches), expected)


def test_state_in_two_stages_is_refused(devices):
    inputs = keras.Input((6,))
    counts = Counts()
    x = counts(layers.Dense(6)(inputs))
    x = counts(layers.Dense(6, name="middle")(x))
    model = keras.Model(inputs, layers.Dense(2)(x))
    split = PipelineSplit(model, devices[:2], micro_batches=2, cuts=["middle"])
    split.compile("sgd", "mse")
    with (
        pytest.warns(UserWarning, match="is updated once per micro-batch"),
        pytest.raises(ValueError, match=r"counts/seen' is assigned in stage 0 and in stage 1"),
    ):
        split.fit(X, Y, verbose=0)


def test_a_layer_that_assigns_its_weight_trains_as_in_plain_keras(devices):
    def make():
        return keras.Sequential(
            [
                keras.Input((6,)),
                layers.SpectralNormalization(layers.Dense(6)),
                layers.Dense(6, activation="tanh"),
                layers.Dense(2),
            ]
        )

    assert_equal(split_trained(make, devices[:2], 1), trained(fresh(make)))
