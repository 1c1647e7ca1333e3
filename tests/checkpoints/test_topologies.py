"""A checkpoint of one set of devices restores on any other, bit for bit."""

import json

import cluster
import numpy as np
import pytest
import tensorflow as tf
import worker
from simulated import DEVICES

import keras_mgpu as km

NAMES = ("plain", "mirrored", "central storage", "2 stages", "4 stages")


def make(name, devices):
    if name == "mirrored":
        with cluster.mirrored(devices[:2]).scope():
            return worker.make_model()
    if name == "central storage":
        strategy = tf.distribute.experimental.CentralStorageStrategy(
            compute_devices=devices[:2], parameter_device=devices[0]
        )
        with strategy.scope():
            return worker.make_model()
    model = worker.make_model()
    if name.endswith("stages"):
        num_stages = int(name.split()[0])
        return km.PipelineSplit(model, devices=devices[:num_stages], micro_batches=2)
    return model


def train(model):
    x, y = (np.concatenate(parts) for parts in zip(*(worker.batch(n) for n in range(4))))
    if model.optimizer is None:
        model.compile("adam", "mse", metrics=["mae"])
    model.fit(x, y, batch_size=8, epochs=1, verbose=0, shuffle=False)


def assert_equal(found, expected):
    assert sorted(found) == sorted(expected)
    for key in expected:
        np.testing.assert_array_equal(found[key], expected[key], err_msg=key)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A checkpoint of each topology, with the values that are in it."""
    directory = tmp_path_factory.mktemp("topologies")
    expected = {}
    for name in NAMES:
        model = make(name, DEVICES)
        train(model)
        km.save_checkpoint(directory / name, model)
        expected[name] = worker.values_of(model)
    (directory / "others.json").write_text(json.dumps(NAMES))
    cluster.finish(cluster.start_workers(2, "topologies", directory))
    expected["2 workers"] = dict(np.load(directory / "2 workers.npz"))
    return directory, expected


@pytest.mark.parametrize("reader", NAMES)
def test_everyone_reads_what_everyone_writes(written, devices, reader):
    directory, expected = written
    model = make(reader, devices)
    if model.optimizer is None:
        model.compile("adam", "mse", metrics=["mae"])
    for name in (*NAMES, "2 workers"):
        restored = km.restore_checkpoint(directory / name, model)
        assert restored.step in (2, 3)
        assert_equal(worker.values_of(model), expected[name])
        train(model)  # Restored variables are where training looks for them.


@pytest.mark.parametrize("index", [0, 1])
def test_two_workers_read_what_everyone_writes(written, index):
    directory, expected = written
    for name in NAMES:
        found = dict(np.load(directory / f"{name} read by {index}.npz"))
        assert_equal(found, expected[name])


def test_two_workers_write_half_each(written):
    directory, _ = written
    path = km.latest_checkpoint(directory / "2 workers")
    manifest = json.loads(tf.io.gfile.GFile(f"{path}/manifest.json").read())["manifest"]
    assert manifest["topology"]["workers"] == ["worker:0", "worker:1"]
    sizes = [f["num_bytes"] for f in manifest["files"] if ".data-" in f["name"]]
    assert len(sizes) == 2
    assert max(sizes) < 1.5 * min(sizes)


def test_tensorflow_reads_it_without_us(written):
    directory, expected = written
    path = km.latest_checkpoint(directory / "4 stages")
    reader = tf.train.load_checkpoint(f"{path}/variables")
    for key, value in expected["4 stages"].items():
        np.testing.assert_array_equal(reader.get_tensor(key), value)


def test_a_plan_and_a_schedule_are_in_the_manifest(written):
    directory, _ = written
    path = km.latest_checkpoint(directory / "2 stages")
    manifest = json.loads(tf.io.gfile.GFile(f"{path}/manifest.json").read())["manifest"]
    assert len(km.PartitionPlan.from_json(json.dumps(manifest["plan"])).stages) == 2
    assert km.Schedule.from_json(json.dumps(manifest["schedule"])).num_micro_batches == 2
