"""Optimizers: slots and their variables, steps that were counted."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_mgpu.internals import keras_optimizers


def weights():
    return [keras.Variable(np.ones(shape, "float32"), name="weight") for shape in ((2, 3), (3,))]


def built(optimizer, variables):
    optimizer.build(variables)
    return optimizer


@pytest.mark.parametrize(
    ("make", "slots_per_weight"),
    [
        (lambda: keras.optimizers.SGD(), 0),
        (lambda: keras.optimizers.SGD(momentum=0.9), 1),
        (lambda: keras.optimizers.Adam(), 2),
        (lambda: keras.optimizers.Adam(amsgrad=True), 3),
        (lambda: keras.optimizers.Adam(gradient_accumulation_steps=2), 3),
        (lambda: keras.optimizers.Adam(use_ema=True), 3),
        (lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam()), 2),
    ],
    ids=["sgd", "momentum", "adam", "amsgrad", "accumulation", "ema", "loss scale"],
)
def test_every_slot_is_found_with_its_weight(make, slots_per_weight):
    variables = weights()
    pairs = keras_optimizers.slots_of(built(make(), variables))
    assert len(pairs) == slots_per_weight * len(variables)
    for variable, slot in pairs:
        assert slot.shape == variable.shape


def test_an_optimizer_finds_weights_that_have_moved(devices):
    variables = weights()
    optimizer = built(keras.optimizers.SGD(1.0), variables)
    for variable in variables:
        with tf.device(devices[1]):
            variable._value = tf.Variable(variable.numpy())
    keras_optimizers.rekey_optimizer(optimizer)
    optimizer.apply([tf.ones(v.shape) for v in variables], variables)
    np.testing.assert_array_equal(variables[0].numpy(), np.zeros((2, 3)))


def test_variables_are_updated_device_by_device_and_keras_is_as_before():
    variables = weights()
    optimizer = built(keras.optimizers.SGD(1.0, weight_decay=0.5), variables)
    ran_on = []

    def run_on(device, update):
        ran_on.append(device)
        update()

    with keras_optimizers.updating_by_device(optimizer, run_on):
        optimizer.apply([tf.ones(v.shape) for v in variables], variables)
    np.testing.assert_array_equal(variables[1].numpy(), np.full(3, -0.5))
    assert ran_on == [variables[0].value.device] * 2  # Decay, then the update.
    names = ("_all_reduce_sum_gradients", "_apply_weight_decay", "_distributed_tf_update_step")
    assert not set(names) & set(vars(optimizer))


def test_steps_are_batches_and_not_updates():
    variables = weights()[1:]
    optimizer = built(keras.optimizers.SGD(gradient_accumulation_steps=2), variables)
    for _ in range(3):
        optimizer.apply([tf.ones(3)], variables)
    assert keras_optimizers.steps_of(optimizer) == 3
    assert int(optimizer.iterations) == 1
    scaled = built(keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD()), variables)
    assert keras_optimizers.steps_of(scaled) == 0
    assert keras_optimizers.steps_of(None) == 0


def test_a_second_optimizer_that_a_model_keeps():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.for_the_generator = keras.optimizers.Adam()
    assert keras_optimizers.optimizers_of(model) == {"for_the_generator": model.for_the_generator}


@pytest.mark.parametrize(
    "optimizer",
    [
        lambda: keras.optimizers.Adam(use_ema=True, gradient_accumulation_steps=2),
        lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(momentum=0.9)),
    ],
)
def test_an_optimizer_that_could_not_be_built_is_as_it_was(optimizer, devices, tmp_path):
    weights = [keras.Variable(np.ones(2, "float32"))]
    found, expected = optimizer(), optimizer()
    before = set(vars(found))

    def build_in_vain():
        with keras_optimizers.as_before_on_error(found):
            keras_optimizers.build_on(devices[1], found, weights)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build_in_vain()
    assert not found.built
    assert set(vars(found)) == before
    assert [v.name for v in found.variables] == [v.name for v in expected.variables]
    for each in (found, expected):
        each.build(weights)
        each.apply_gradients([(tf.ones(2), weights[0])])
    assert [v.name for v in found.variables] == [v.name for v in expected.variables]
    saved = [
        tf.train.list_variables(tf.train.Checkpoint(optimizer=each).save(tmp_path / "saved"))
        for each in (found, expected)
    ]
    assert saved[0] == saved[1]


def test_slots_are_built_on_one_device_wherever_variables_are(devices):
    with tf.device(devices[2]):
        weight = keras.Variable(np.ones(2, "float32"))
    optimizer = keras.optimizers.Adam()
    keras_optimizers.build_on(devices[1], optimizer, [weight])
    assert {f"/{slot.value.device[-5:]}" for _, slot in keras_optimizers.slots_of(optimizer)} == {
        devices[1]
    }
