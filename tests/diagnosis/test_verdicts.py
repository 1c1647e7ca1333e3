"""What is said of numbers that GPUs would give; here they are made up."""

import types

import pytest

from keras_mgpu.diagnosis import devices as device_check
from keras_mgpu.diagnosis import memory, overlap
from keras_mgpu.diagnosis.copies import lines_of
from keras_mgpu.diagnosis.machine import Machine
from keras_mgpu.diagnosis.memory import DeviceMemory

MIB = 1 << 20
GPUS = Machine(("/GPU:0", "/GPU:1"))


def device_memory(peak):
    return DeviceMemory("GPU:0", 100 * MIB, 200 * MIB, 100 * MIB, 600 * MIB, peak=peak)


def test_memory_as_planned_and_far_above():
    assert device_memory(1).planned == 1000 * MIB
    assert not device_memory(1400 * MIB).is_far_above
    assert device_memory(1600 * MIB).is_far_above
    assert not device_memory(None).is_far_above
    assert "peak 1.4 GiB (1.40x), planned 1000.0 MiB" in str(device_memory(1400 * MIB))
    assert "peak not known" in str(device_memory(None))


def test_a_tiny_model_is_not_judged_by_its_scratch_memory():
    assert not DeviceMemory("GPU:0", 1, 2, 1, 5, peak=memory.SLACK_BYTES).is_far_above


@pytest.mark.parametrize(
    ("machine", "step", "predicted", "status"),
    [
        (GPUS, 0.6, 0.5, "ok"),
        (GPUS, 0.9, 0.5, "warning"),
        (GPUS, 1.3, 0.5, "warning"),
        (GPUS, 0.9, 1.0, "unknown"),
        (Machine(("/GPU:0",)), 0.6, 0.5, "unknown"),
        (Machine(("/CPU:0", "/CPU:1")), 0.6, 0.5, "unknown"),
    ],
)
def test_overlap(machine, step, predicted, status):
    workload = types.SimpleNamespace(machine=machine, step_seconds=step)
    found, line = overlap.judge(workload, serial=1.0, predicted=predicted)
    assert found == status
    assert line.endswith(".")


def link(source, target, kind, peer_access):
    return {"source": source, "target": target, "link": kind, "peer_access": peer_access}


def test_links():
    pair = ("GPU:0", "GPU:1")
    finding = device_check.judge_links(
        [link(*pair, "NVLink", True), link(*pair[::-1], "NVLink", True)]
    )
    assert finding.status == "ok"
    assert finding.lines == ("NVLink, with peer access: GPU:0→GPU:1 GPU:1→GPU:0",)
    finding = device_check.judge_links([link(*pair, "through the host", False)])
    assert finding.status == "warning"
    assert "through host memory" in finding.lines[-1]
    finding = device_check.judge_links([link(*pair, None, None)])
    assert finding.status == "unknown"


@pytest.mark.parametrize(
    ("mode", "status"), [("gpu_private", "ok"), ("global", "warning"), (None, "warning")]
)
def test_launch_threads(monkeypatch, mode, status):
    monkeypatch.delenv("TF_GPU_THREAD_MODE", raising=False)
    if mode is not None:
        monkeypatch.setenv("TF_GPU_THREAD_MODE", mode)
    config = device_check.tf.config
    monkeypatch.setattr(config, "list_physical_devices", lambda kind: ["GPU:0", "GPU:1"])
    monkeypatch.setattr(config.experimental, "get_memory_growth", lambda gpu: False)
    assert device_check.judge_launch_threads(GPUS).status == status
    assert device_check.judge_launch_threads(Machine(("/CPU:0",))).status == "unknown"


def test_copies_are_told_by_direction():
    def copy(source, target, speed):
        return {
            "source": source,
            "target": target,
            "gigabytes_per_second": speed,
            "microseconds": 50.0,
        }

    lines = lines_of([copy("host", "GPU:0", 12.0), copy("GPU:0", "GPU:1", 9.0)])
    assert lines == [
        "host to device: 12.0 GB/s, 50 µs for a small tensor",
        "device to device: 9.0 GB/s, 50 µs for a small tensor",
    ]
    (line,) = lines_of([copy("GPU:0", "GPU:1", 200.0), copy("GPU:0", "GPU:2", 9.0)])
    assert "9.0 GB/s (GPU:0→GPU:2) to 200.0 GB/s" in line
