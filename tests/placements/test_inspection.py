"""`placement` and `assert_placement`: where layers are, without training."""

import keras
import numpy as np
import pytest
from pinned import make_model
from placed import data, layers_of, make_nested
from simulated import DEVICES, NAMES

import keras_mgpu as km
from keras_mgpu.placements.assertion import assert_placement
from keras_mgpu.placements.inspection import placement


def test_nothing_changes():
    model = make_model(*DEVICES[:2])
    before = [v.numpy() for v in model.variables]
    report = placement(model, data())
    assert layers_of(report)["second"].got == ((NAMES[1],),)
    assert report == placement(model, data()[0])
    for old, variable in zip(before, model.variables):
        np.testing.assert_array_equal(old, variable.numpy())


def test_several_inputs():
    one, other = keras.Input((4,)), keras.Input((3,))
    x = keras.layers.Concatenate()([one, other])
    model = keras.Model([one, other], keras.layers.Dense(2, name="head")(x))
    assert_placement(model, {"head": NAMES[0]})
    report = placement(model, [np.ones((5, 4)), np.ones((5, 3))])
    assert report.num_samples == 5


def test_a_layer_on_the_wrong_device(devices):
    model = make_model(devices[0], devices[2])
    assert_placement(model, {"first": NAMES[0], "sec*": devices[2]})
    with pytest.raises(AssertionError, match=f"second is on {NAMES[2]} instead of {NAMES[1]}"):
        assert_placement(model, {"first": NAMES[0], "second": NAMES[1]})


def test_devices_asked_for_need_not_exist():
    report = placement(make_model("/GPU:8", "/GPU:9"), data())
    assert_placement(report, {"first": "GPU:8", "second": "GPU:9"}, asked=True)
    with pytest.raises(AssertionError, match="GPU:8 is not available"):
        assert_placement(report, {"first": "GPU:8"})


def test_a_layer_that_asked_for_no_device():
    with pytest.raises(AssertionError, match="head asked for no device instead of GPU:1"):
        assert_placement(make_nested(), {"head": "GPU:1"}, asked=True)


def test_bad_input():
    report = placement(make_model(*DEVICES[:2]), data())
    with pytest.raises(ValueError, match=r"Similar layers: second.*pattern='secnd'"):
        assert_placement(report, {"secnd": NAMES[1]})
    with pytest.raises(ValueError, match='must be named like "GPU:0"'):
        assert_placement(report, {"second": "the big one"})

    class Net(keras.Model):
        def call(self, x):
            return x

    with pytest.raises(ValueError, match="Pass a batch"):
        assert_placement(Net(), {"first": NAMES[0]})


def test_both_are_public():
    assert (km.placement, km.assert_placement) == (placement, assert_placement)
