"""A compiled loss as terms, each divided by what Keras divides it by."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from keras_mgpu.internals.keras_losses import build_losses_and_metrics, compiled_loss_of
from keras_mgpu.internals.keras_masks import set_mask
from keras_mgpu.pipeline.loss.loss_terms import (
    ONE,
    SAMPLES,
    WEIGHTS,
    add_penalty_gradients,
    penalty,
    resolve,
)

Y = tf.constant(np.arange(12.0).reshape(4, 3), tf.float32)
PRED = tf.zeros((4, 3))


def terms_of(loss, y=Y, y_pred=PRED, sample_weight=None):
    model = keras.Sequential([keras.Input((3,)), layers.Dense(3)])
    model.compile(loss=loss)
    build_losses_and_metrics(model, PRED, y, y_pred, sample_weight)
    return resolve(compiled_loss_of(model), y, y_pred, sample_weight)


@pytest.mark.parametrize(
    ("reduction", "weight", "rule"),
    [
        ("sum_over_batch_size", None, SAMPLES),
        ("mean", None, SAMPLES),
        ("sum", None, ONE),
        ("mean_with_sample_weight", None, SAMPLES),
        ("mean_with_sample_weight", tf.ones((4,)), WEIGHTS),
    ],
)
def test_rule_and_divisor_of_every_reduction(reduction, weight, rule):
    loss = keras.losses.MeanSquaredError(reduction=reduction)
    (term,) = terms_of(loss, sample_weight=weight)
    assert term.find_rule() == rule
    np.testing.assert_allclose(term.value(), loss(Y, PRED, weight))
    assert float(term.divisor(rule, tf.constant(4))) == {SAMPLES: 4, ONE: 1, WEIGHTS: 4}[rule]


def test_under_a_mask_valid_places_divide():
    y_pred = tf.zeros((2, 2, 3))
    set_mask(y_pred, tf.constant([[True, False], [False, False]]))
    loss = keras.losses.MeanSquaredError()
    (term,) = terms_of(loss, tf.ones((2, 2, 3)), y_pred)
    assert term.needs_outputs(SAMPLES)
    assert float(term.divisor(SAMPLES, tf.constant(2))) == 1


def test_a_loss_that_ignores_a_class_brings_a_mask_of_its_own():
    loss = keras.losses.SparseCategoricalCrossentropy(ignore_class=0, from_logits=True)
    y = tf.constant([[0, 1], [2, 0]])
    (term,) = terms_of(loss, y, tf.zeros((2, 2, 3)))
    np.testing.assert_array_equal(term.mask(), [[False, True], [True, False]])


def test_penalties_count_once_and_have_gradients():
    layer = layers.Dense(2, kernel_regularizer=keras.regularizers.L2(0.5))
    layer.build((None, 3))
    weights = layer.trainable_weights
    np.testing.assert_allclose(penalty(weights), 0.5 * np.sum(np.square(layer.kernel)), rtol=1e-6)
    kernel, bias = add_penalty_gradients([None, None], weights, tf.constant(2.0))
    np.testing.assert_allclose(kernel, 2.0 * layer.kernel.numpy(), rtol=1e-6)
    assert bias is None
