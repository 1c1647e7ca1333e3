"""Variables: where Keras keeps them, what they are called, and how one moves."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from keras_mgpu.internals import keras_variables


def names_below(model):
    return [name for name, _ in keras_variables.variables_by_layer(model)]


def test_whoever_holds_a_variable_sees_it_on_its_new_device(devices):
    layer = layers.Dense(2)
    layer.build((None, 3))
    kernel, before = layer.kernel, layer.kernel.numpy()
    with tf.device(devices[2]):
        keras_variables.move_variable(kernel, tf.Variable(before))
    assert layer.kernel is kernel
    assert kernel.value.device.endswith(devices[2][1:])
    kernel.assign(before + 1)
    np.testing.assert_allclose(layer(np.eye(3)), before + 1, rtol=1e-6)


def test_state_is_what_a_call_may_assign():
    """Statistics and seeds; neither a weight, nor a weight that is frozen."""
    norm, dropout = layers.BatchNormalization(), layers.Dropout(0.5)
    frozen = layers.Dense(2, trainable=False)
    for layer in (norm, dropout, frozen):
        layer.build((None, 3))
    names = [variable.name for variable in keras_variables.own_state(norm)]
    assert names == ["moving_mean", "moving_variance"]
    assert keras_variables.own_state(dropout) == [dropout.seed_generator.state]
    assert keras_variables.own_state(frozen) == []
    assert len(keras_variables.own_weights(norm)) == 4


def test_a_layers_own_weights_are_not_those_of_layers_inside_it():
    outer = layers.Bidirectional(layers.SimpleRNN(2, use_bias=False))
    outer.build((None, 3, 4))
    assert keras_variables.own_weights(outer) == []
    for name in ("forward", "backward"):
        cell = f"{name}_simple_rnn/simple_rnn_cell"
        assert {f"{cell}/kernel", f"{cell}/recurrent_kernel"} <= set(names_below(outer))


def test_names_do_not_depend_on_how_many_models_were_made_before():
    def make():
        return keras.Sequential([keras.Input((3,)), layers.Dense(2), layers.Dense(2)])

    first, second = make(), make()
    assert first.weights[0].path != second.weights[0].path
    assert names_below(first) == names_below(second)
    assert names_below(first) == ["dense/kernel", "dense/bias", "dense_1/kernel", "dense_1/bias"]


def test_names_of_ones_own_stay():
    model = keras.Sequential([keras.Input((3,)), layers.Dense(2, name="dense_of_mine")])
    assert names_below(model) == ["dense_of_mine/kernel", "dense_of_mine/bias"]


def test_a_variable_of_several_replicas_is_each_of_them(devices):
    with tf.distribute.MirroredStrategy(devices[:2]).scope():
        mirrored = keras.Variable(np.ones(3, "float32"))
    assert len(keras_variables.copies_of(mirrored)) == 2
    assert len(keras_variables.copies_of(keras.Variable(np.ones(3, "float32")))) == 1


def test_the_global_seed_is_there_once_it_was_used():
    assert keras_variables.global_seed_state() is None
    keras.random.normal((2,))
    assert keras_variables.global_seed_state() is not None
