"""Numbers that are wrong are found, and those that are right are not complained of."""

import keras
import numpy as np
import pytest
from simulated import NAMES

from keras_mgpu.diagnosis.exactness import FLOAT32, TF32, check_convolution
from keras_mgpu.diagnosis.machine import Machine
from keras_mgpu.pipeline import optimizer_slots

AGAINST_CPU, AGAINST_UNSPLIT = "against the CPU, float32", "split against unsplit, same devices"


@pytest.fixture
def machine(devices):
    return Machine(tuple(devices[:2]))


def test_a_single_device_with_two_stages(devices):
    finding = check_convolution(Machine((devices[1],)))
    assert finding.status == "ok"
    assert finding.data[AGAINST_CPU]["gradients"] < FLOAT32.fine


def test_more_devices_than_usual(devices):
    assert check_convolution(Machine(tuple(devices))).status == "ok"


@pytest.mark.parametrize(
    ("factor", "status"), [(1.0, "ok"), (1.001, "warning"), (1.5, "failed"), (np.nan, "failed")]
)
def test_updates_that_are_off(machine, monkeypatch, factor, status):
    """A split model that trains with gradients that are a little, or very, wrong."""
    apply = optimizer_slots.apply_beside

    def apply_wrongly(optimizer, gradients, weights):
        apply(optimizer, [gradient * factor for gradient in gradients], weights)

    monkeypatch.setattr(optimizer_slots, "apply_beside", apply_wrongly)
    finding = check_convolution(machine)
    assert finding.status == finding.data[AGAINST_CPU]["status"] == status
    assert finding.data[AGAINST_UNSPLIT]["status"] == "ok"  # These gradients are not applied.


def test_a_layer_that_computes_something_else_when_it_is_split(machine, monkeypatch):
    """As a kernel that is wrong on one kind of device would."""
    call = keras.layers.GroupNormalization.call

    def call_wrongly(self, inputs):
        outputs = call(self, inputs)
        return outputs * 1.2 if NAMES[1] in outputs.device else outputs

    monkeypatch.setattr(keras.layers.GroupNormalization, "call", call_wrongly)
    finding = check_convolution(machine)
    assert finding.status == finding.data[AGAINST_CPU]["status"] == "failed"
    assert "wrong" in finding.lines[1]


def test_three_digits_are_enough_for_tf32_and_not_for_float32():
    assert (FLOAT32.judge(2e-3), TF32.judge(2e-3)) == ("warning", "ok")
    assert (FLOAT32.judge(5e-2), TF32.judge(5e-2)) == ("failed", "warning")
    assert FLOAT32.judge(float("nan")) == TF32.judge(float("inf")) == "failed"
