"""Sums of gradients are TensorFlow's own sums."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from simulated import DEVICES

from keras_mgpu.internals.tf_functions import scratch_graph
from keras_mgpu.pipeline.stage.gradients import GradientSum, GradientVariables, add_gradients


def slices(index, size=4):
    return tf.IndexedSlices(tf.ones((1, 2)), tf.constant([index]), tf.constant([size, 2]))


def test_nothing_added_is_none():
    assert add_gradients([]) is None
    assert add_gradients([None, None]) is None


def test_sparse_gradients_stay_sparse_if_all_are():
    total = add_gradients([slices(1), None, slices(3)])
    assert isinstance(total, tf.IndexedSlices)
    np.testing.assert_array_equal(total.indices, [1, 3])
    mixed = add_gradients([slices(1), tf.ones((4, 2))])
    assert isinstance(mixed, tf.Tensor)
    np.testing.assert_array_equal(mixed[:, 0], [1, 2, 1, 1])


def test_sums_over_micro_batches():
    weights = [keras.Variable(np.zeros((4, 2))), keras.Variable(np.zeros(2))]
    sums = GradientSum(weights)
    sums.add([slices(0), tf.ones(2)])
    sums.add([slices(0), None])
    table, bias = sums.total()
    np.testing.assert_array_equal(tf.convert_to_tensor(table)[0], [2, 2])
    np.testing.assert_array_equal(bias, [1, 1])


def test_a_scale_of_fp8_is_taken_as_it_came_last():
    weight = keras.Variable(np.zeros(2))
    weight.overwrite_with_gradient = True
    sums = GradientSum([weight])
    sums.add([tf.fill([2], 3.0)])
    sums.add([tf.fill([2], 5.0)])
    np.testing.assert_array_equal(sums.total()[0], [5, 5])


def test_sums_in_place_begin_anew_with_each_step():
    weight, other = keras.Variable(np.zeros(2)), keras.Variable(np.zeros(2))
    sums = GradientVariables(DEVICES[1])

    @tf.function(autograph=False)
    def step(gradient):
        sums.clear()
        with tf.control_dependencies([sums.add(weight, gradient)]):
            with tf.control_dependencies([sums.add(weight, gradient)]):
                return sums.read([])[weight]

    with scratch_graph("step").as_default():
        sums.add(weight, tf.zeros(2))
    sums.take_memory()
    for _ in range(2):
        np.testing.assert_array_equal(step(tf.ones(2)), [2, 2])
    assert other not in sums.read([])


def test_sums_without_room_say_so_and_hold_nothing(monkeypatch, devices):
    large, small = keras.Variable(np.zeros((64, 64))), keras.Variable(np.zeros(2))
    sums, filled = GradientVariables(devices[1], "stage 1 (dense)"), []
    zeros = tf.zeros

    def zeros_until_full(shape, dtype):
        if shape == (64, 64):
            raise tf.errors.ResourceExhaustedError(None, None, "OOM when allocating")
        filled.append(shape)
        return zeros(shape, dtype)

    with scratch_graph("step").as_default():
        sums.add(large, tf.zeros((64, 64)))
        sums.add(small, tf.zeros(2))
    monkeypatch.setattr(tf, "zeros", zeros_until_full)
    with pytest.raises(tf.errors.ResourceExhaustedError) as caught:
        sums.take_memory()
    message = str(caught.value)
    assert f"the sums of the gradients of stage 1 (dense) on {devices[1]}." in message
    assert "To be stored: 16.0 KiB in 2 variables. No room for variable" in message
    assert filled == [(2,), [0], [0]]  # The small one first; then none of them has any memory.
    monkeypatch.undo()
    sums.take_memory()
    np.testing.assert_array_equal(sums.read([])[large], np.zeros((64, 64)))
