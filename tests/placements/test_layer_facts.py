"""What layers hold, return and read, known without running them."""

import keras
import pytest
import tensorflow as tf
from placed import make_nested
from simulated import NAMES

import keras_mgpu as km
from keras_mgpu.placements.layer_facts import all_optimizers, bytes_by_device, facts_of
from keras_mgpu.placements.layer_scopes import LayerScopes


def facts(model, inner=None):
    found = facts_of(model, LayerScopes(inner or model), num_samples=3)
    return {each.node.path: each for each in found}


def test_weights_slots_activations_and_inputs():
    model = make_nested()
    model.compile("adam", "mse")
    model.optimizer.build(model.trainable_variables)
    found = facts(model)
    shared = found["shared"]
    assert [tuple(each.shape) for each in shared.weights] == [(8, 8), (8,)]
    assert len(shared.slots) == 2 * len(shared.weights)
    assert shared.activation_bytes == 2 * 3 * 8 * 4  # It is called twice.
    assert shared.inputs == ("first", "shared")
    assert found["head"].inputs == ("in/layer_normalization",)
    assert found["head"].stages == ()


def test_shapes_that_are_not_known():
    inputs = keras.Input((None, 4))
    model = keras.Model(inputs, keras.layers.Dense(2, name="head")(inputs))
    assert facts(model)["head"].activation_bytes is None


def test_stages_of_a_pipeline(devices):
    model = make_nested()
    split = km.PipelineSplit(model, devices[:2], cuts=["first"])
    found = facts(split, model)
    assert found["first"].stages == (0,)
    assert found["shared"].stages == (1,)


def test_optimizers_inside_optimizers():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
    inner = keras.optimizers.Adam()
    model.compile(keras.optimizers.LossScaleOptimizer(inner), "mse")
    assert all_optimizers(model) == [model.optimizer, inner]


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_bytes_by_device(devices, dtype):
    with tf.device(devices[1]):
        variable = keras.Variable(tf.zeros((3, 5), dtype), dtype=dtype)
    size = {"float32": 4, "float16": 2}[dtype]
    assert bytes_by_device([variable]) == {NAMES[1]: 15 * size}
