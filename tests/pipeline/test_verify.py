"""`split.verify`: the button that shows whether the numbers are Keras's own."""

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers
from transparency import AddsLoss

from keras_mgpu import PipelineSplit
from keras_mgpu.pipeline.verify import SAME_MICRO_BATCHES, WHOLE_BATCH, Difference, VerifyReport

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
        split.compile(keras.optimizers.Adam(), "mse", metrics=[["mae"]] * len(model.outputs))
        return split, split.verify(X, y, **data)


def state_of(split):
    variables = [*split.model.variables, *split.optimizer.variables]
    variables += [v for metric in split.metrics for v in metric.variables]
    return [variable.numpy() for variable in variables]


MODELS = {
    "plain": (lambda: sequential(), WHOLE_BATCH),
    "dropout": (lambda: sequential(layers.Dropout(0.5)), SAME_MICRO_BATCHES),
    "batch_norm": (lambda: sequential(layers.BatchNormalization()), SAME_MICRO_BATCHES),
    "add_loss": (lambda: sequential(AddsLoss("sum"), AddsLoss("mean")), WHOLE_BATCH),
    "all": (
        lambda: sequential(
            layers.BatchNormalization(), layers.Dropout(0.3), AddsLoss("sum"), AddsLoss("mean")
        ),
        SAME_MICRO_BATCHES,
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_split_and_unsplit_agree(devices, name):
    make, reference = MODELS[name]
    model = make()
    _, report = verified(model, devices)
    assert report.reference == reference
    assert report.max_relative < 1e-5
    assert [row.name for row in report.gradients] == [v.path for v in model.trainable_weights]


def test_several_outputs_and_weights(devices):
    inputs = keras.Input((6,))
    x = layers.Dense(8, activation="tanh")(inputs)
    model = keras.Model(inputs, [layers.Dense(3)(x), layers.Dense(3)(x)])
    _, report = verified(model, devices, y=[Y, Y], sample_weight=np.arange(10.0))
    assert report.reference == WHOLE_BATCH
    assert report.max_relative < 1e-5


def test_nothing_is_changed(devices):
    model = sequential(layers.BatchNormalization(), layers.Dropout(0.5))
    split, _ = verified(model, devices)
    split.fit(X, Y, verbose=0)
    before = state_of(split)
    split.verify(X, Y)
    for value, expected in zip(state_of(split), before):
        np.testing.assert_array_equal(value, expected)


def test_a_wrong_gradient_is_found(devices):
    """A layer whose gradient depends on how the batch is cut, which nobody can make exact."""

    class Couples(layers.Layer):
        def call(self, inputs):
            return inputs - keras.ops.mean(inputs, axis=0, keepdims=True)

    _, report = verified(sequential(Couples()), devices)
    assert report.max_relative > 1e-2


def test_report_reads_as_a_table(devices):
    _, report = verified(sequential(), devices)
    lines = str(report).splitlines()
    assert "whole batch" in lines[0]
    assert lines[2].startswith("loss")
    assert any(line.startswith("sequential/dense/kernel") for line in lines)


def test_nan_is_not_hidden():
    nan = Difference("a", float("nan"), float("nan"))
    report = VerifyReport(Difference("loss", 0.0, 0.0), (nan,), WHOLE_BATCH)
    assert np.isnan(report.max_relative)
    assert np.isnan(report.max_absolute)


def test_loss_scaling_is_taken_out_of_the_gradients(devices):
    keras.config.set_dtype_policy("mixed_float16")
    _, report = verified(sequential(), devices)
    assert report.max_relative < 2e-2  # float16 has three digits.


def test_takes_tensors_too(devices):
    split, _ = verified(sequential(), devices)
    assert split.verify(tf.constant(X), tf.constant(Y)).max_relative < 1e-5
