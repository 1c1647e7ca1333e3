"""`split.verify`: the button that shows whether the numbers are Keras's own."""

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers
from transparency import AddsLoss

from keras_mgpu import PipelineSplit
from keras_mgpu.pipeline.verify import Comparison, Difference, VerifyReport

X = np.random.default_rng(0).normal(size=(10, 6)).astype("float32")
Y = np.random.default_rng(1).normal(size=(10, 3)).astype("float32")


def sequential(*middle):
    return keras.Sequential(
        [keras.Input((6,)), layers.Dense(8, activation="tanh"), *middle, layers.Dense(3)]
    )


def verified(model, devices, y=Y, micro_batches=4, **data):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        split = PipelineSplit(model, devices[:2], micro_batches)
        metrics = ["mae"] if len(model.outputs) == 1 else [["mae"]] * len(model.outputs)
        split.compile(keras.optimizers.Adam(), "mse", metrics=metrics)
        return split, split.verify(X, y, **data)


def state_of(split):
    variables = [*split.model.variables, *split.optimizer.variables]
    variables += [v for metric in split.metrics for v in metric.variables]
    return [variable.numpy() for variable in variables]


class AddsTwoLosses(layers.Layer):
    """One loss is a sum over samples, the other a mean."""

    def call(self, inputs):
        self.add_loss(0.01 * keras.ops.sum(keras.ops.square(inputs)))
        self.add_loss(0.1 * keras.ops.mean(keras.ops.square(inputs)))
        return inputs


class Centers(layers.Layer):
    """Mixes the samples that it is given together."""

    def call(self, inputs):
        return inputs - keras.ops.mean(inputs, axis=0, keepdims=True)


# For each model, whether a step of it depends on how the batch is split.
MODELS = {
    "plain": (lambda: sequential(), False),
    "add_loss": (lambda: sequential(AddsLoss("sum"), AddsLoss("mean")), False),
    "two losses of one layer": (lambda: sequential(AddsTwoLosses()), False),
    "dropout": (lambda: sequential(layers.Dropout(0.5)), True),
    "batch_norm": (lambda: sequential(layers.BatchNormalization()), True),
    "mixes samples": (lambda: sequential(Centers()), True),
    "keeps state": (lambda: sequential(layers.SpectralNormalization(layers.Dense(8))), True),
    "all": (
        lambda: sequential(
            layers.BatchNormalization(), layers.Dropout(0.3), AddsTwoLosses(), AddsLoss("mean")
        ),
        True,
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_compares_with_the_whole_batch_and_with_the_same_micro_batches(devices, name):
    make, depends_on_split = MODELS[name]
    model = make()
    _, report = verified(model, devices)
    assert report.same_micro_batches.max_relative < 1e-5
    assert (report.whole_batch.max_relative > 1e-3) == depends_on_split
    assert report.max_relative == report.whole_batch.max_relative
    for comparison in (report.whole_batch, report.same_micro_batches):
        names = [row.name for row in comparison.gradients]
        assert names == [v.path for v in model.trainable_weights]


def test_several_outputs_and_weights(devices):
    inputs = keras.Input((6,))
    x = layers.Dense(8, activation="tanh")(inputs)
    model = keras.Model(inputs, [layers.Dense(3)(x), layers.Dense(3)(x)])
    _, report = verified(model, devices, y=[Y, Y], sample_weight=np.arange(10.0))
    assert report.whole_batch.max_relative < 1e-5
    assert report.same_micro_batches.max_relative < 1e-5


def test_one_micro_batch_is_the_whole_batch(devices):
    _, report = verified(sequential(layers.BatchNormalization()), devices, micro_batches=1)
    assert report.whole_batch == report.same_micro_batches
    assert report.max_relative < 1e-5


def test_nothing_is_changed(devices):
    model = sequential(layers.BatchNormalization(), layers.Dropout(0.5))
    split, _ = verified(model, devices)
    split.fit(X, Y, verbose=0)
    before = state_of(split)
    split.verify(X, Y)
    for value, expected in zip(state_of(split), before):
        np.testing.assert_array_equal(value, expected)


def test_report_reads_as_a_table(devices):
    _, report = verified(sequential(), devices)
    title, columns, _, loss, *gradients = str(report).splitlines()
    assert title == "Differences from plain Keras"
    assert columns.index("on the whole batch") < columns.index("on the same micro-batches")
    assert loss.startswith("loss")
    assert gradients[0].startswith("sequential/dense/kernel")
    assert len({len(line) for line in (columns, loss, *gradients)}) == 1


def test_the_largest_differences_can_be_picked(devices):
    _, report = verified(sequential(layers.BatchNormalization()), devices)
    largest = report.largest(2)
    relative = [row.relative for row in largest.whole_batch.gradients]
    assert relative == sorted(row.relative for row in report.whole_batch.gradients)[:-3:-1]
    names = [row.name for row in largest.whole_batch.gradients]
    assert [row.name for row in largest.same_micro_batches.gradients] == names
    assert largest.max_relative == report.max_relative


def test_nan_is_not_hidden():
    nan = Difference("a", float("nan"), float("nan"))
    comparison = Comparison(Difference("loss", 0.0, 0.0), (nan,))
    report = VerifyReport(comparison, comparison)
    assert np.isnan(report.max_relative)
    assert np.isnan(report.max_absolute)


def test_loss_scaling_is_taken_out_of_the_gradients(devices):
    keras.config.set_dtype_policy("mixed_float16")
    _, report = verified(sequential(), devices)
    assert report.max_relative < 2e-2  # float16 has three digits.


def test_takes_tensors_too(devices):
    split, _ = verified(sequential(), devices)
    assert split.verify(tf.constant(X), tf.constant(Y)).max_relative < 1e-5
