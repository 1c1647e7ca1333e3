"""The model that is timed."""

import pytest

from keras_mgpu.diagnosis.machine import Machine
from keras_mgpu.diagnosis.runner import run_checks
from keras_mgpu.diagnosis.workload import Workload


def test_a_model_that_does_not_train_is_tried_once(devices, monkeypatch):
    """Four checks need it. On a GPU that is full, each try takes TensorFlow half a minute."""
    tries = []

    def out_of_memory(workload):
        tries.append(workload)
        raise MemoryError("no room")

    monkeypatch.setattr(Workload, "_make_split", out_of_memory)
    workload = Workload(Machine(tuple(devices[:2])))
    checks = {"first": lambda: workload.split, "second": lambda: workload.measured}
    first, second = run_checks(checks, max_seconds=60)
    assert len(tries) == 1
    assert first.finding.lines == ("MemoryError: no room",)
    assert "An earlier check has the error." in second.finding.lines[0]
    assert "no room" in second.finding.data["traceback"]


@pytest.mark.parametrize("num_devices", [1, 4])
def test_any_number_of_devices(devices, num_devices):
    workload = Workload(Machine(tuple(devices[:num_devices])))
    assert len(workload.split.stages) == max(2, num_devices)
    assert workload.predicted.makespan > 0
    assert len(workload.batch[0]) == workload.num_samples * workload.split.micro_batches
