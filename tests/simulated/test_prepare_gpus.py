"""`prepare_gpus`, before TensorFlow starts: each test needs a process of its own."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import simgpu

PROGRAM = """
import json, os, sys
import simgpu
simgpu.load()
import tensorflow as tf
import keras_mgpu as km
{code}
for index in range(2):
    with tf.device(f"/GPU:{{index}}"):
        tf.function(lambda: tf.ones(4) + 1)()
found["threads"] = len(os.listdir("/proc/self/task"))
gpus = tf.config.list_physical_devices("GPU")
found["growth"] = [bool(tf.config.experimental.get_memory_growth(gpu)) for gpu in gpus]
sys.stdout.write(json.dumps(found))
"""


def run(code, **environment):
    """What a program found that prepares GPUs and then uses two of them."""
    paths = [str(Path(simgpu.__file__).parent), str(Path(__file__).parents[2])]
    settings = {key: value for key, value in os.environ.items() if key != "TF_GPU_THREAD_MODE"}
    settings |= {"PYTHONPATH": os.pathsep.join(paths), "TF_CPP_MIN_LOG_LEVEL": "2", **environment}
    command = [sys.executable, "-c", PROGRAM.format(code=f"found = {{}}\n{code}")]
    done = subprocess.run(command, env=settings, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def shared():
    """How many threads TensorFlow has where all GPUs share those of the CPU."""
    found = run("")
    assert found["growth"] == [False] * len(found["growth"])
    return found["threads"]


def has_private_threads(found, shared):
    """Whether each GPU has two more. Their names are too long for Linux to keep."""
    assert found["threads"] - shared in (0, 2 * len(found["growth"]))
    return found["threads"] > shared


def test_each_gpu_gets_threads_of_its_own(shared):
    found = run('found["devices"] = km.prepare_gpus()')
    assert found["devices"] == [f"/GPU:{index}" for index in range(len(found["growth"]))]
    assert has_private_threads(found, shared)
    assert not any(found["growth"])


def test_memory_grows_on_all_gpus(shared):
    found = run("km.prepare_gpus(memory_growth=True)")
    assert all(found["growth"])
    assert has_private_threads(found, shared)


def test_what_the_user_has_set_stays(shared):
    assert not has_private_threads(run("km.prepare_gpus()", TF_GPU_THREAD_MODE="global"), shared)


def test_pick_devices_prepares_gpus(shared):
    found = run('found["devices"] = km.pick_devices(2)')
    assert found["devices"] == ["/GPU:0", "/GPU:1"]
    assert has_private_threads(found, shared)


def test_pick_devices_takes_gpus_that_have_started(shared):
    found = run('tf.ones(4)\nfound["devices"] = km.pick_devices(2)')
    assert found["devices"] == ["/GPU:0", "/GPU:1"]
    assert not has_private_threads(found, shared)


def test_calling_it_again_does_no_harm(shared):
    assert has_private_threads(run("km.prepare_gpus()\ntf.ones(4)\nkm.prepare_gpus()"), shared)


def test_too_late():
    code = """
tf.ones(4)
for options in ({}, {"memory_growth": True}):
    try:
        km.prepare_gpus(**options)
    except RuntimeError as error:
        found[str(options)] = str(error)
"""
    found = run(code)
    assert "already started" in found["{}"]
    assert "TF_GPU_THREAD_MODE=gpu_private" in found["{}"]
    assert "already started" in found["{'memory_growth': True}"]
