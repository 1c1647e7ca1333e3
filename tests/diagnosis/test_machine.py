"""Which devices are checked."""

import pytest

from keras_mgpu.diagnosis.machine import Machine, NoGPUsError, find_machine


def test_devices_that_were_asked_for():
    machine = find_machine(["CPU:1", "cpu:0", "/CPU:1"])
    assert machine.devices == machine.stage_devices == ("/CPU:1", "/CPU:0")
    assert machine.pairs == [("/CPU:1", "/CPU:0"), ("/CPU:0", "/CPU:1")]
    assert not machine.has_gpus_only


def test_a_single_device_gets_two_stages():
    machine = find_machine(["CPU:1"])
    assert machine.devices == ("/CPU:1",)
    assert machine.stage_devices == ("/CPU:1", "/CPU:1")
    assert machine.pairs == []


def test_gpus_and_others():
    assert Machine(("/GPU:0", "/GPU:1")).has_gpus_only
    assert not Machine(("/GPU:0", "/CPU:0")).has_gpus_only


def test_no_gpus_and_nothing_asked_for(monkeypatch):
    monkeypatch.setattr("keras_mgpu.diagnosis.machine.gpus", list)
    with pytest.raises(NoGPUsError, match=r"sees no GPU on this machine.*--devices CPU:0,CPU:1"):
        find_machine()
