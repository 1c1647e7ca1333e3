"""The same callback under every strategy: no `if chief`, and the same end after an interruption."""

import json

import cluster
import keras
import numpy as np
import pytest
import runs

import keras_mgpu as km


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
        return runs.train(model, data, checkpoint, epochs=2, interrupt_after=interrupt_after)

    whole = one(tmp_path / "whole")
    assert one(tmp_path / "parts", interrupt_after=6) is None
    runs.assert_same(whole, one(tmp_path / "parts"))


def test_statistics_of_each_replica(tmp_path, devices):
    """Keras keeps them apart, and evaluates with all of them."""

    def one(directory, interrupt_after=None):
        runs.fresh()
        with cluster.mirrored(devices[:2]).scope():
            model = keras.Sequential(
                [keras.Input((8,)), keras.layers.BatchNormalization(), keras.layers.Dense(3)]
            )
            model.compile("sgd", "mse")
        x = np.arange(32 * 8, dtype="float32").reshape(32, 8)  # Rows differ, and so do halves.
        data = km.resumable(x, x[:, :3] / 256, batch_size=8, shuffle=False)
        options = {"validation_data": (x, x[:, :3]), "interrupt_after": interrupt_after}
        checkpoint = km.DistributedCheckpoint(directory, save_freq=1)
        return runs.train(model, data, checkpoint, epochs=2, **options)

    whole = one(tmp_path / "whole")
    assert one(tmp_path / "parts", interrupt_after=6) is None
    runs.assert_same(whole, one(tmp_path / "parts"))


def test_statistics_of_each_worker(tmp_path):
    cluster.finish(cluster.start_workers(2, "statistics", tmp_path))
    one, other = (json.loads((tmp_path / f"{i}.json").read_text()) for i in range(2))
    for worker in (one, other):
        assert worker["parts"] == worker["whole"]
    assert one["whole"]["mean"] != other["whole"]["mean"]
    # Restored elsewhere, they are those of one worker, not a mixture.
    assert one["fresh"] == other["fresh"] == {k: one["whole"][k] for k in ("mean", "variance")}


def test_parameter_servers_in_a_custom_loop(tmp_path):
    """In processes of their own: TensorFlow cannot leave a cluster again."""
    outputs = [
        cluster.run("parameter_server.py", tmp_path / name, stop_after)
        for name, stop_after in (("whole", 0), ("parts", 5), ("parts", 0))
    ]
    assert "stopped at 5" in outputs[1]
    assert "went on from 2" in outputs[2] or "went on from 4" in outputs[2]
    one, other = (np.load(tmp_path / name / "values.npz") for name in ("whole", "parts"))
    for key in one.files:
        np.testing.assert_array_equal(one[key], other[key], err_msg=key)
