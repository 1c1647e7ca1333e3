"""Snapshots on their way to disk and back, alone and with two workers in one process."""

import json
from dataclasses import replace

import pytest
import tensorflow as tf

from keras_mgpu.checkpoints.damage import checksum_damage, damages, size_damage
from keras_mgpu.checkpoints.loading import has_model, load, newest_intact
from keras_mgpu.checkpoints.manifest import DamagedError, Manifest
from keras_mgpu.checkpoints.parts import DifferentModels, Part, Snapshot, complete, write_part
from keras_mgpu.checkpoints.patience import Patience
from keras_mgpu.checkpoints.retention import Retention
from keras_mgpu.checkpoints.saver import CheckpointError, Saver, finish_earlier_save
from keras_mgpu.checkpoints.store import Store
from keras_mgpu.system.cluster import Workers

TWO = ("worker:0", "worker:1")


def snapshot(key="model/x", step=1, model='{"name": "net"}'):
    tensors = {key: tf.fill([3], float(step))}
    manifest = Manifest(step, 0, step, {"loss": 1 / step}, "", {})
    return Snapshot(manifest, {"CPU:0": tensors}, {"history": {}}, {"place": key}, model)


def save(saver, *snapshots):
    for each in snapshots:
        saver.save(each)
        report = saver.wait()
    saver.close()
    return report


def test_saved_and_loaded(tmp_path):
    store = Store(str(tmp_path))
    report = save(Saver(store, Workers()), snapshot())
    assert (report.step, report.num_bytes, report.num_kept) == (1, 12, 1)
    (entry,) = store.entries()
    assert damages(entry) == []
    loaded = load(entry)
    assert loaded.tensors["model/x"].numpy().tolist() == [1, 1, 1]
    assert loaded.state == {"history": {}, "workers": [{"place": "model/x"}]}
    assert has_model(loaded.manifest)


def test_retention(tmp_path):
    store = Store(str(tmp_path))
    saver = Saver(store, Workers(), Retention(last=1, best=1, mode="max"), monitor="loss")
    report = save(saver, *(snapshot(step=step) for step in (1, 2, 3)))
    assert (report.num_kept, report.num_deleted) == (2, 1)
    assert [entry.step for entry in store.entries()] == [1, 3]


def test_two_workers_write_one_checkpoint(tmp_path):
    store = Store(str(tmp_path))
    savers = [Saver(store, Workers(index, TWO), timeout=60) for index in range(2)]
    for saver, key in zip(savers, ("model/x", "model/y")):
        saver.save(snapshot(key))
    reports = [saver.wait() for saver in savers]
    assert reports[0].path == reports[1].path
    loaded = newest_intact(store)
    assert set(loaded.tensors) == {"model/x", "model/y"}
    assert loaded.state["workers"] == [{"place": "model/x"}, {"place": "model/y"}]
    for saver in savers:
        saver.close()


@pytest.mark.parametrize(
    ("index", "message"),
    [(0, "worker:1 did not write its part of step 1"), (1, "worker:0 did not complete it")],
)
def test_a_worker_without_the_other(tmp_path, index, message):
    saver = Saver(Store(str(tmp_path)), Workers(index, TWO), timeout=0.05)
    with pytest.raises(CheckpointError, match=rf"step 1 could not be saved.*{message}.*0.05 sec"):
        save(saver, snapshot())
    assert not list(tmp_path.glob("[!.]*"))


def test_a_save_of_an_earlier_run_is_waited_for(tmp_path, caplog):
    saver = Saver(Store(str(tmp_path)), Workers(0, TWO), timeout=0.05)
    saver.save(snapshot())
    saver.close()
    finish_earlier_save(str(tmp_path))
    assert "The last checkpoint of the previous run was not saved." in caplog.text


def test_workers_with_different_models(tmp_path):
    mine = write_part(str(tmp_path), 0, snapshot(), "token")
    other = write_part(str(tmp_path), 1, snapshot("model/y", model='{"name": "other"}'), "token")
    saved = json.loads((tmp_path / "part-1.json").read_text())
    assert Part.from_json(saved) == other
    with pytest.raises(DifferentModels, match="worker 1 trains a different model than worker 0"):
        complete(str(tmp_path), snapshot(), [mine, other])


def test_numbers_in_names_do_not_make_a_model_different(tmp_path):
    models = [f'{{"name": "dense_{number}"}}' for number in (1, 2)]
    one, other = (write_part(str(tmp_path), 0, snapshot(model=each), "") for each in models)
    assert one.model == other.model != 0


def test_damage(tmp_path, caplog):
    store = Store(str(tmp_path))
    saver = Saver(store, Workers())
    save(saver, snapshot(step=1), snapshot(step=2))
    entry = store.entries()[-1]
    file = next(each for each in load(entry).manifest.files if ".data-" in each.name)
    path = tmp_path / entry.name / file.name
    path.write_bytes(b"\0" * file.num_bytes)
    assert size_damage(entry.path, file) is None
    assert checksum_damage(entry.path, file) == f"{file.name}: checksum does not match"
    assert damages(entry, full=False) == []
    assert damages(entry)[-1] == "unreadable tensors: model/x"
    path.write_bytes(b"")
    assert damages(entry, full=False) == [f"{file.name} has 0 bytes instead of {file.num_bytes}"]
    with pytest.raises(DamagedError, match="has 0 bytes"):
        load(entry)
    assert newest_intact(store).manifest.step == 1
    assert f"It was renamed to {tmp_path}/damaged-{entry.name}" in caplog.text


def test_a_checkpoint_that_is_refused_is_not_read(tmp_path):
    store = Store(str(tmp_path))
    save(Saver(store, Workers()), replace(snapshot(), model=None))

    def refuse(manifest):
        raise ValueError(f"step {manifest.step}")

    with pytest.raises(ValueError, match="step 1"):
        newest_intact(store, refuse)
    assert not has_model(newest_intact(store).manifest)


def test_patience_ends():
    patience = Patience(1000, ["worker:1"])
    assert patience.lasts()
    assert not Patience(-1, ["worker:1"]).lasts()
    assert "Give every worker the same one" in patience.end
