"""What lies between two GPUs, told by a stand-in for the driver that NVIDIA's own package loads."""

import os
import subprocess
import sys

import cluster
import pytest

HERE = cluster.HERE
BUSES = ["0000:01:00.0", "0000:02:00.0", "0000:03:00.0", "0000:81:00.0"]
ASK = """
from keras_mgpu.placements.gpu_links import link_between_buses
print([link_between_buses(*pair) for pair in {}])
"""


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    """A folder with the compiled stand-in."""
    return cluster.compile_driver("links.c", tmp_path_factory.mktemp("driver"))


def ask(pairs, **environment):
    run = subprocess.run(
        [sys.executable, "-c", ASK.format(pairs)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return eval(run.stdout)


def test_links(driver):
    pairs = [(BUSES[0], bus) for bus in BUSES] + [(BUSES[2], BUSES[1]), (BUSES[0], "0000:99:00.0")]
    found = ask(pairs, LD_LIBRARY_PATH=str(driver))
    assert found == ["same GPU", "NVLink", "PCIe", "through the host", "PCIe", ""]


def test_without_a_driver():
    assert ask([(BUSES[0], BUSES[1])]) == [""]
