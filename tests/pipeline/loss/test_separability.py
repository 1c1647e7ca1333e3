"""Whether something can be computed micro-batch by micro-batch, found by trying it."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from keras_mgpu.model import layer_calls
from keras_mgpu.pipeline.loss.separability import (
    find_added_rule,
    find_rule,
    mean_of_parts,
    metric_adds_up,
    parts_in_a_row,
    sum_of_parts,
)
from keras_mgpu.pipeline.stage.stage_function import LossCall

SPECS = (tf.TensorSpec((None, 3), tf.float32), tf.TensorSpec((None, 3), tf.float32), None)
RULES = {"mean": mean_of_parts, "sum": sum_of_parts, "rows": parts_in_a_row}


def squared(y_true, y_pred, sample_weight=None):
    return keras.ops.square(y_true - y_pred)


@pytest.mark.parametrize(
    ("loss", "rule"),
    [
        (lambda *data: keras.ops.mean(squared(*data)), "mean"),
        (lambda *data: keras.ops.sum(squared(*data)), "sum"),
        (lambda *data: keras.ops.mean(squared(*data), axis=-1), "rows"),
        (lambda *data: keras.ops.max(squared(*data)), None),
        (lambda *data: keras.ops.sqrt(keras.ops.mean(squared(*data))), None),
    ],
    ids=["mean", "sum", "row per sample", "largest", "root of a mean"],
)
def test_rules_of_losses(loss, rule):
    assert find_rule(loss, SPECS, RULES) == rule


def test_a_mean_over_what_is_not_ignored_is_not_a_mean():
    def ignoring(y_true, y_pred, sample_weight=None):
        used = keras.ops.cast(y_true != -100.0, "float32")
        return keras.ops.sum(used * squared(y_true, y_pred)) / keras.ops.sum(used)

    assert find_rule(ignoring, SPECS, RULES) is None


def test_a_loss_that_cannot_be_tried_has_no_rule():
    def refuses(*data):
        raise ValueError("never")

    assert find_rule(refuses, SPECS, RULES) is None


def test_a_loss_that_takes_class_numbers_only():
    loss = keras.losses.SparseCategoricalCrossentropy()
    specs = (tf.TensorSpec((None,), tf.int32), tf.TensorSpec((None, 4), tf.float32), None)
    assert find_rule(loss, specs, RULES) == "mean"


@pytest.mark.parametrize(
    ("metric", "adds_up"),
    [
        (keras.metrics.MeanSquaredError(), True),
        (keras.metrics.AUC(), True),
    ],
    ids=["mean", "histogram"],
)
def test_metrics_that_add_up(metric, adds_up):
    metric(np.zeros((2, 3)), np.ones((2, 3)))  # Makes its variables.
    before = [variable.numpy() for variable in metric.variables]
    assert metric_adds_up(metric, SPECS) == adds_up
    for variable, value in zip(metric.variables, before):
        np.testing.assert_array_equal(variable, value)


def test_a_metric_that_keeps_the_last_batch_does_not_add_up():
    class Last(keras.metrics.Metric):
        def __init__(self):
            super().__init__()
            self.value = self.add_variable((), "zeros")

        def update_state(self, y_true, y_pred, sample_weight=None):
            self.value.assign(keras.ops.mean(y_pred))

    assert not metric_adds_up(Last(), SPECS)


def test_each_loss_of_a_layer_has_a_rule_of_its_own():
    class Adds(layers.Layer):
        def call(self, inputs):
            self.add_loss(keras.ops.sum(inputs))
            self.add_loss(keras.ops.mean(inputs))
            self.add_loss(keras.ops.max(inputs))
            return inputs

    model = keras.Sequential([keras.Input((3,)), Adds()])
    (call,) = layer_calls.from_model(model).calls
    read = [tf.TensorSpec((None, 3), tf.float32)]
    rules = {"mean": mean_of_parts, "sum": sum_of_parts}
    found = [find_added_rule(LossCall(call, read, place), True, rules) for place in range(3)]
    assert found == ["sum", "mean", None]
