"""Variables move to devices, all of them or none."""

import gc
import weakref

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_mgpu.model import placing
from keras_mgpu.model.placing import Load, place

HELPS = "one more device"


@pytest.fixture
def weights():
    with tf.device("/CPU:0"):
        return [
            keras.Variable(np.full(shape, value, "float32"), name=name)
            for name, shape, value in [
                ("large", (64, 64), 1),
                ("small", (2,), 2),
                ("middle", (8, 8), 3),
            ]
        ]


@pytest.fixture
def loads(weights, devices):
    return [
        Load("the weights of stage 1 (first)", devices[1], weights[:2], HELPS),
        Load("the weights of stage 2 (second)", devices[2], weights[2:], HELPS),
    ]


def places(variables):
    return [f"/{variable.value.device[-5:]}" for variable in variables]


def fails_after(monkeypatch, num_copies, error):
    """Lets a number of variables be copied; returns references to their copies."""
    copied, copy_to = [], placing.copy_to

    def copy_some(variable, *arguments):
        if len(copied) == num_copies:
            raise error
        made = copy_to(variable, *arguments)
        copied.append(weakref.ref(made))
        return made

    monkeypatch.setattr(placing, "copy_to", copy_some)
    return copied


def test_variables_move_with_their_values(weights, loads, devices):
    objects, before = list(weights), [weight.numpy() for weight in weights]
    place(loads)
    assert places(weights) == [devices[1], devices[1], devices[2]]
    assert all(weight is before for weight, before in zip(weights, objects))
    for weight, value in zip(weights, before):
        np.testing.assert_array_equal(weight, value)


def test_a_variable_that_is_where_it_belongs_is_not_copied(weights, loads):
    place(loads)
    values = [weight.value for weight in weights]
    place(loads)
    assert all(weight.value is value for weight, value in zip(weights, values))


@pytest.mark.parametrize(
    "error",
    [
        tf.errors.ResourceExhaustedError(None, None, "OOM when allocating"),
        tf.errors.InternalError(None, None, "Dst tensor is not initialized. [Op:Identity]"),
    ],
)
def test_a_device_without_room(monkeypatch, weights, loads, devices, error):
    copied = fails_after(monkeypatch, 2, error)
    with pytest.raises(tf.errors.ResourceExhaustedError) as caught:
        place(loads)
    lines = str(caught.value).splitlines()
    assert [line for line in lines if not line.startswith("In use")] == [
        f"Out of memory while placing the weights of stage 1 (first) on {devices[1]}.",
        "To be stored: 16.0 KiB in 2 variables. No room for large (16.0 KiB).",
        "What helps: one more device.",
        "Nothing was moved.",
    ]
    assert places(weights) == ["/CPU:0"] * 3
    gc.collect()
    assert [each() for each in copied] == [None, None]
    monkeypatch.undo()
    place(loads)
    assert places(weights) == [devices[1], devices[1], devices[2]]


@pytest.mark.parametrize(
    "error", [tf.errors.InternalError(None, None, "something else"), KeyboardInterrupt()]
)
def test_other_errors_stay_what_they_are(monkeypatch, weights, loads, error):
    copied = fails_after(monkeypatch, 2, error)
    with pytest.raises(type(error)) as caught:
        place(loads)
    assert caught.value is error
    assert places(weights) == ["/CPU:0"] * 3
    gc.collect()
    assert [each() for each in copied] == [None, None]
