"""Where Keras sees GPUs, `jit_compile="auto"` means XLA, which cannot reach over devices."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_mgpu as km

X, Y = np.ones((16, 8), "float32"), np.zeros((16, 4), "float32")


def make():
    with tf.device("/CPU:0"):
        hidden = keras.Sequential(
            [keras.Input((16,)), keras.layers.Dense(16), keras.layers.Dense(16)], name="hidden"
        )
        layers = [keras.layers.Dense(16, activation="relu"), hidden, keras.layers.Dense(4)]
        return keras.Sequential([keras.Input((8,)), *layers])


def generate(model, x):
    """As keras_hub does it: with XLA if the model is compiled with XLA."""
    step = tf.function(lambda x: model(x, training=False), jit_compile=model.jit_compile)
    return step(tf.constant(x))


def uses(split):
    """What a user may do with a split model and with the model inside it."""
    return {
        "split.predict": split.predict(X, verbose=0),
        "model.predict": split.model.predict(X, verbose=0),
        "generate": generate(split.model, X),
    }


def test_keras_asks_for_xla_here():
    """Else the tests below would prove nothing."""
    model = make()
    model.compile("sgd", "mse")
    assert model.jit_compile


@pytest.mark.parametrize("when", ["never", "before", "after", "inside"])
def test_a_split_model_never_runs_with_xla_over_devices(when, devices):
    model = make()
    expected = np.asarray(model(X))
    if when == "before":
        model.compile("sgd", "mse")
    split = km.PipelineSplit(model, devices[:2], micro_batches=2, cuts=["hidden/dense_1"])
    if when == "after":
        split.compile("sgd", "mse")
    if when == "inside":
        model.compile("sgd", "mse")
        split.evaluate(X, Y, verbose=0)
    for name, found in uses(split).items():
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5, err_msg=name)
    inner = split.model.get_layer("hidden").predict(np.ones((2, 16), "float32"), verbose=0)
    assert inner.shape == (2, 16)


@pytest.mark.parametrize("when", ["before", "after"])
def test_the_model_inside_can_be_trained_and_evaluated(when, devices):
    model = make()
    if when == "before":
        model.compile("sgd", "mse")
    split = km.PipelineSplit(model, devices[:2], micro_batches=2)
    if when == "after":
        split.compile("sgd", "mse")
    split.fit(X, Y, verbose=0)
    model.fit(X, Y, verbose=0)
    assert split.evaluate(X, Y, verbose=0) == pytest.approx(model.evaluate(X, Y, verbose=0))
