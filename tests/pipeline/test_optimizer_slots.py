"""Slots of an optimizer live, and are updated, on the devices of their variables."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_mgpu.internals.tf_functions import functions_in
from keras_mgpu.pipeline.optimizer_slots import apply_beside, build_beside, place_slots


@pytest.fixture
def variables(devices):
    made = []
    for device in devices[:2]:
        with tf.device(device):
            made.append(keras.Variable(np.ones((2, 2), "float32")))
    return made


def devices_of(slots):
    return [tf.DeviceSpec.from_string(slot.value.device).device_index for slot in slots]


def test_slots_are_made_beside_their_variables(variables):
    optimizer = keras.optimizers.Adam()
    build_beside(optimizer, variables)
    assert devices_of(optimizer._momentums) == devices_of(optimizer._velocities) == [0, 1]


def test_slots_that_exist_are_moved_with_their_values(variables):
    optimizer = keras.optimizers.SGD(momentum=0.9)
    optimizer.build(variables)
    optimizer.apply_gradients(zip([tf.ones((2, 2))] * 2, variables))
    before = [slot.numpy() for slot in optimizer.momentums]
    place_slots(optimizer)
    assert devices_of(optimizer.momentums) == [0, 1]
    for slot, value in zip(optimizer.momentums, before):
        np.testing.assert_array_equal(slot, value)


def test_the_slots_of_an_optimizer_inside_another_are_found(variables):
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam())
    build_beside(optimizer, variables)
    assert devices_of(optimizer.inner_optimizer._momentums) == [0, 1]


def test_updates_are_computed_where_the_variable_is(variables):
    optimizer = keras.optimizers.Adam(weight_decay=0.1, clipnorm=1.0)
    build_beside(optimizer, variables)

    @tf.function(autograph=False)
    def step(gradients):
        apply_beside(optimizer, gradients, variables)

    gradients = [tf.ones((2, 2))] * 2
    graph = step.get_concrete_function(gradients).graph
    calls = [op for op in graph.get_operations() if op.type == "StatefulPartitionedCall"]
    assert sorted(op.device[-1] for op in calls) == ["0", "0", "1", "1"]  # Decay, then the update.
    for call in calls:
        inner = functions_in(graph)[call.get_attr("f").name]
        writes = [op for op in inner.get_operations() if op.type.startswith("Assign")]
        assert writes
        assert {op.device for op in writes} == {call.device}
    step(gradients)
    expected = keras.Variable(np.ones((2, 2), "float32"))
    plain = keras.optimizers.Adam(weight_decay=0.1, clipnorm=1.0)
    plain.apply_gradients([(tf.ones((2, 2)), expected)])
    for variable in variables:
        np.testing.assert_allclose(variable, expected, rtol=1e-6)
