"""A model as a line of layer calls."""

import keras
import numpy as np
import pytest
from keras import layers

from keras_mgpu.model import layer_calls

X = np.random.default_rng(0).normal(size=(5, 4)).astype("float32")


def skip():
    inputs = keras.Input((4,))
    first = layers.Dense(4, name="first")(inputs)
    second = layers.Dense(4, name="second")(first)
    return keras.Model(inputs, layers.Add(name="sum")([first, second]))


def nested():
    inner = keras.Sequential(
        [keras.Input((4,)), layers.Dense(4, name="a"), layers.Dense(4, name="b")], name="inner"
    )
    inputs = keras.Input((4,))
    return keras.Model(inputs, inner(layers.ReLU(name="relu")(inner(inputs))))


def with_dropout():
    return keras.Sequential([keras.Input((4,)), layers.Dropout(0.5, seed=0), layers.Dense(2)])


def test_calls_say_which_values_they_read():
    calls = layer_calls.from_model(skip())
    assert [call.name for call in calls.calls] == ["first", "second", "sum"]
    first, second, total = calls.calls
    assert first.inputs == calls.inputs
    assert second.inputs == first.outputs
    assert total.inputs == (*first.outputs, *second.outputs)
    assert calls.outputs == total.outputs


def test_a_nested_model_lies_open_each_time_it_is_called():
    calls = layer_calls.from_model(nested()).calls
    assert [call.name for call in calls if not call.is_entry] == [
        "inner/a",
        "inner/b",
        "relu",
        "inner/a@2",
        "inner/b@2",
    ]
    assert calls[1].layer is calls[-2].layer


@pytest.mark.parametrize("make", [skip, nested, with_dropout])
def test_running_all_calls_is_calling_the_model(make):
    model = make()
    calls = layer_calls.from_model(model)
    np.testing.assert_allclose(calls.run(X, training=False), model(X), rtol=1e-6)


def test_training_reaches_the_layers():
    calls = layer_calls.from_model(with_dropout())
    assert not np.allclose(calls.run(X, training=True), calls.run(X, training=False))


def test_a_nested_model_with_a_penalty_of_its_own_stays_closed():
    """Running its layers one by one would leave the penalty out."""
    inner = keras.Sequential([keras.Input((4,)), layers.Dense(4)], name="inner")
    inner.activity_regularizer = keras.regularizers.L2(0.1)
    inputs = keras.Input((4,))
    calls = layer_calls.from_model(keras.Model(inputs, inner(inputs))).calls
    assert [call.name for call in calls] == ["inner"]


def test_a_model_that_runs_code_of_its_own_has_no_calls():
    class Own(keras.Model):
        def call(self, inputs):
            return inputs

    assert layer_calls.from_model(Own()) is None


def test_a_list_of_stages_is_a_chain():
    """Whatever a stage returns, the next one takes: here a dictionary."""

    class Splits(layers.Layer):
        def call(self, x):
            return {"low": x[:, :2], "high": x[:, 2:]}

    class Joins(layers.Layer):
        def call(self, values):
            return values["high"] + values["low"]

    calls = layer_calls.from_stages([Splits(), Joins()])
    assert calls.one_per_stage
    np.testing.assert_allclose(calls.run(X, training=False), X[:, 2:] + X[:, :2], rtol=1e-6)
    assert tuple(calls.output_spec(X).shape) == (5, 2)
