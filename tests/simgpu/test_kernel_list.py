"""The list of kernels is of the TensorFlow that is installed; both wheels can tell."""

import json

import make_kernel_list
import pytest
import tensorflow as tf

ORIGIN = json.loads(make_kernel_list.ORIGIN.read_text(encoding="utf-8"))
REMEDY = (
    "Make `tests/simgpu/kernels.pb` anew: python tests/simgpu/make_kernel_list.py "
    ".venv/bin/python .simulator/bin/python"
)


def numbers(version):
    return tuple(map(int, version.split(".")[:2]))


@pytest.mark.skipif(
    numbers(tf.__version__) < numbers(ORIGIN["tensorflow"]),
    reason="the simulator runs on the newest TensorFlow that is supported",
)
def test_the_list_is_of_the_tensorflow_that_is_installed():
    from tensorflow.python.framework import kernels

    installed = make_kernel_list.for_gpus(kernels.get_all_registered_kernels().kernel)
    assert make_kernel_list.hash_of(installed) == ORIGIN["kernels_for_gpus"], REMEDY


def test_the_environment_of_the_simulator_is_of_the_same_release():
    requirements = (make_kernel_list.HERE / "requirements.txt").read_text(encoding="utf-8")
    assert f"tensorflow-cpu=={ORIGIN['tensorflow']}\n" in requirements
