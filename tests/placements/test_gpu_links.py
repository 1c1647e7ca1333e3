"""Links between GPUs, with a stand-in for the driver that NVIDIA's own package loads."""

import json

import cluster
import pytest

from keras_mgpu.placements import gpu_links
from keras_mgpu.placements.gpu_links import has_peer_access, link_between

BUSES = ["0000:01:00.0", "0000:02:00.0", "0000:03:00.0", "0000:81:00.0"]


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    """The compiled stand-in."""
    folder = cluster.compile_driver("links.c", tmp_path_factory.mktemp("driver"))
    return folder / "libnvidia-ml.so.1"


def ask(driver, pairs):
    printed = cluster.run("gpu_link_pairs.py", driver, json.dumps(pairs))
    return json.loads(printed.splitlines()[-1])  # TensorFlow may log before it.


def test_links(driver):
    pairs = [(BUSES[0], bus) for bus in BUSES] + [(BUSES[2], BUSES[1]), (BUSES[0], "0000:99:00.0")]
    found = ask(driver, pairs)
    assert found["links"] == ["same GPU", "NVLink", "PCIe", "through the host", "PCIe", ""]
    assert found["peer access"][1:] == [True, True, False, True, None]
    assert found["version"] == "570.86.10"


def test_without_a_driver():
    found = ask("none", [(BUSES[0], BUSES[1])])
    assert found == {"version": "", "links": [""], "peer access": [None]}


def test_a_cpu_has_no_link():
    assert link_between("/device:CPU:0", "/device:CPU:1") == ""
    assert has_peer_access("/device:CPU:0", "/device:CPU:1") is None


def test_gpus_as_tensorflow_names_them(monkeypatch):
    monkeypatch.setattr(
        gpu_links, "buses_of_gpus", lambda: {f"/device:GPU:{k}": BUSES[k] for k in range(2)}
    )
    monkeypatch.setattr(gpu_links, "link_between_buses", lambda *buses: " and ".join(buses))
    assert link_between("GPU:1", "GPU:0") == f"{BUSES[1]} and {BUSES[0]}"
    assert link_between("GPU:1", "CPU:0") == link_between("GPU:1", "worker:1/GPU:0") == ""
