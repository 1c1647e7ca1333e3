"""The same callback under every strategy: no `if chief`, and the same end after an interruption."""

import os
import subprocess
import sys
from pathlib import Path

import cluster
import keras
import numpy as np
import pytest
import runs

import keras_mgpu as km

HERE = Path(__file__).parent


def make_model():
    """Without dropout: Keras cannot train it under CentralStorageStrategy."""
    model = keras.Sequential(
        [keras.Input((8,)), keras.layers.Dense(16, activation="relu"), keras.layers.Dense(3)]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(1e-2), loss, metrics=["accuracy"])
    return model


@pytest.mark.parametrize("name", ["one device", "mirrored", "one worker", "central storage"])
def test_an_interrupted_fit(tmp_path, devices, name):
    def one(directory, interrupt_after=None):
        runs.fresh()
        with cluster.strategies(devices)[name]().scope():
            model = make_model()
        checkpoint = km.DistributedCheckpoint(directory, save_freq=1)
        data = runs.make_data()
        return runs.train(model, data, checkpoint, interrupt_after=interrupt_after)

    whole = one(tmp_path / "whole")
    assert one(tmp_path / "parts", interrupt_after=6) is None
    runs.assert_same(whole, one(tmp_path / "parts"))


def test_parameter_servers_in_a_custom_loop(tmp_path):
    """In a process of its own: a cluster cannot be left again."""
    script = HERE / "parameter_server.py"
    outputs = []
    for name, stop_after in (("whole", 0), ("parts", 5), ("parts", 0)):
        run = subprocess.run(
            [sys.executable, str(script), str(tmp_path / name), str(stop_after)],
            env={**os.environ, "CUDA_VISIBLE_DEVICES": "-1"},
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        assert run.returncode == 0, run.stderr[-3000:]
        outputs.append(run.stdout)
    assert "stopped at 5" in outputs[1]
    assert outputs[2].startswith(("went on from 2", "went on from 4"))
    one, other = (np.load(tmp_path / name / "values.npz") for name in ("whole", "parts"))
    for key in one.files:
        np.testing.assert_array_equal(one[key], other[key], err_msg=key)
