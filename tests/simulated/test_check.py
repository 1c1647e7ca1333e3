"""`keras-mgpu check` on GPUs; what they are as fast as says nothing here."""

import json
from pathlib import Path

import pytest
import simgpu
import tensorflow as tf

from keras_mgpu.cli.main import main
from keras_mgpu.diagnosis import exactness
from keras_mgpu.diagnosis.copies import LARGE_BYTES, check_copies
from keras_mgpu.diagnosis.machine import Machine, find_machine
from keras_mgpu.diagnosis.memory import check_memory
from keras_mgpu.diagnosis.placement import check_crossings
from keras_mgpu.diagnosis.workload import Workload
from keras_mgpu.internals.private_names import missing


@pytest.fixture(scope="module")
def machine():
    return Machine(("/GPU:0", "/GPU:1"))


@pytest.fixture(scope="module")
def workload(machine):
    return Workload(machine)


def test_the_command(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    code = main(["check", "--devices", "GPU:0,GPU:1"])
    page = capsys.readouterr().out
    assert code == 0, page
    assert max(map(len, page.splitlines())) <= 80
    found = {
        each["name"]: each
        for each in json.loads(Path("keras-mgpu-check.json").read_text())["checks"]
    }
    for name in ("versions", "copies", "what crosses in a step"):
        assert found[name]["status"] == "ok", found[name]
    for name in ("exactness: transformer", "exactness: convolution"):
        assert found[name]["status"] == "ok"
        assert len(found[name]["data"]) == 3  # The last one with TF32.
    # TensorFlow may have started before, too late for launch threads.
    assert found["devices"]["status"] in ("ok", "warning")
    assert found["memory"]["status"] in ("ok", "warning")
    assert found["overlap"]["status"] in ("ok", "warning")


def test_by_default_all_gpus_are_checked(devices):
    assert find_machine().devices == tuple(devices)


def test_the_reference_does_not_run_on_gpus(machine, monkeypatch):
    """Else both sides of the comparison would make the same mistakes."""
    train, kernels = exactness._train, {}

    def counted(trainer, *args):
        simgpu.reset()
        trained = train(trainer, *args)
        used = sum(count for gpu in simgpu.stats() for count, _ in gpu["kernels"].values())
        kernels.setdefault(type(trainer).__name__, used)
        return trained

    monkeypatch.setattr(exactness, "_train", counted)
    exactness.check_convolution(machine)
    assert kernels["Functional"] == 0
    assert kernels["PipelineSplit"] > 100


def test_every_route_is_copied_over(machine):
    simgpu.reset()
    finding = check_copies(machine)
    routes = {(each["source"], each["target"]) for each in finding.data["copies"]}
    assert routes == {
        ("host", "GPU:0"),
        ("host", "GPU:1"),
        ("GPU:0", "host"),
        ("GPU:1", "host"),
        ("GPU:0", "GPU:1"),
        ("GPU:1", "GPU:0"),
    }
    first, second = simgpu.stats()[:2]
    for gpu in (first, second):
        assert gpu["h2d"]["bytes"] > LARGE_BYTES
        assert gpu["d2h"]["bytes"] > LARGE_BYTES
    assert first["d2d"][1]["bytes"] > LARGE_BYTES
    assert second["d2d"][0]["bytes"] > LARGE_BYTES


def test_what_crosses_is_what_was_sent(workload):
    """Bytes between the GPUs, as reported and as counted."""
    workload.train()
    simgpu.reset()
    workload.train()
    counted = {
        (gpu["device"], int(to)): each for gpu in simgpu.stats() for to, each in gpu["d2d"].items()
    }
    edges = {
        (each["source"], each["target"]): each for each in check_crossings(workload).data["edges"]
    }
    for source, target in ((0, 1), (1, 0)):
        edge = edges[f"GPU:{source}", f"GPU:{target}"]
        assert edge["num_bytes"] == pytest.approx(counted[source, target]["bytes"], rel=0.1)


def test_peaks_are_those_of_the_steps(workload):
    finding = check_memory(workload)
    for each in finding.data["devices"]:
        assert each["before"] >= each["weights"] + each["slots"]
        assert each["peak"] > each["before"] + 0.5 * each["activations"]
        # Nothing before the steps counts, however much it was.
        with tf.device(each["device"]):
            large = tf.zeros([64 << 20])
            del large
    again = check_memory(workload)
    for one, other in zip(finding.data["devices"], again.data["devices"]):
        assert other["peak"] == pytest.approx(one["peak"], rel=0.5)


def test_private_names_are_found_without_xla():
    """Keras would compile the model that they are looked for in, and there may be no compiler."""
    assert not missing()
