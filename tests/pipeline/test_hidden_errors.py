"""What goes wrong in one stage while others wait for it: TensorFlow reports only the waiting."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import keras_mgpu as km


class Fails(layers.Layer):
    """Fails where it is given a number that is not finite, as layers that check their inputs do."""

    def call(self, inputs):
        with tf.control_dependencies([tf.debugging.assert_all_finite(inputs, "Odd numbers")]):
            return tf.identity(inputs)


class FailsBackward(layers.Layer):
    def call(self, inputs):
        @tf.custom_gradient
        def identity(x):
            def gradient(upstream):
                with tf.control_dependencies([tf.debugging.assert_less(upstream, -1e9)]):
                    return tf.identity(upstream)

            return tf.identity(x), gradient

        return identity(inputs)


def split_model(devices, place, layer, **options):
    """Two stages of two layers each, and a layer that fails in one of them."""
    stack = [layers.Dense(4, name=f"dense_{index}") for index in range(4)]
    stack.insert({0: 1, 1: 3}[place], layer)
    model = keras.Sequential([keras.Input((3,)), *stack])
    cut = "dense_1"
    split = km.PipelineSplit(model, devices=devices[:2], micro_batches=4, cuts=[cut], **options)
    split.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return split


def batch(bad_sample=None, bad_label=None):
    x, y = np.ones((16, 3), "float32"), np.zeros(16, "int64")
    if bad_sample is not None:
        x[bad_sample] = np.nan
    if bad_label is not None:
        y[bad_label] = 7
    return x, y


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
def test_a_layer_that_fails_in_a_forward_pass(devices, place, schedule):
    split = split_model(devices, place, Fails(name="checks"), schedule=schedule)
    split.fit(*batch(), batch_size=16, verbose=0)
    for _ in range(3):
        with pytest.raises(tf.errors.InvalidArgumentError, match="Odd numbers") as caught:
            split.fit(*batch(bad_sample=9), batch_size=16, verbose=0)
        assert f"stage {place}" in str(caught.value)
        assert "layer 'checks'" in str(caught.value)
        assert devices[place] in str(caught.value)


def test_a_layer_that_fails_in_a_backward_pass(devices):
    split = split_model(devices, 1, FailsBackward(name="checks"))
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"In stage 1 \(dense_2 … dense_3\)"):
        split.fit(*batch(), batch_size=16, verbose=0)


def test_the_same_error_in_evaluate_and_predict(devices):
    split = split_model(devices, 0, Fails(name="checks"))
    x, y = batch(bad_sample=3)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"stage 0.*layer 'checks'"):
        split.evaluate(x, y, batch_size=16, verbose=0)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"stage 0.*layer 'checks'"):
        split.predict(x, batch_size=16, verbose=0)


def test_training_goes_on_after_an_error_with_the_numbers_of_plain_keras(devices):
    split = split_model(devices, 1, Fails(name="checks"))
    plain = keras.models.clone_model(split.model)
    plain.set_weights(split.model.get_weights())
    plain.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    with pytest.raises(tf.errors.InvalidArgumentError):
        split.fit(*batch(bad_sample=9), batch_size=16, verbose=0)
    losses = [each.fit(*batch(), batch_size=16, verbose=0, epochs=3) for each in (split, plain)]
    np.testing.assert_allclose(losses[0].history["loss"], losses[1].history["loss"], rtol=1e-5)
    for one, other in zip(split.model.get_weights(), plain.get_weights()):
        np.testing.assert_allclose(one, other, atol=1e-5)


def test_a_label_that_is_out_of_range(devices):
    """On a CPU; on GPUs TensorFlow gives such a sample a loss of NaN."""
    split = split_model(["/CPU:0", "/CPU:1"], 0, Fails())
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"(?s)In the loss.*label value of 7"):
        split.fit(*batch(bad_label=5), batch_size=16, verbose=0)
