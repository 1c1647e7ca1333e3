"""A directory of checkpoints."""

import pytest

from keras_mgpu.checkpoints.manifest import DamagedError, FileEntry, Manifest
from keras_mgpu.checkpoints.store import (
    CONDEMNED,
    STATE,
    Store,
    discard,
    final_name,
    parse_path,
    read_manifest,
)
from keras_mgpu.system import files


def save(store, step):
    """A checkpoint of a single small file."""
    staging = store.staging(step)
    files.gfile.makedirs(staging)
    files.write_text(files.join(staging, STATE), "{}")
    manifest = Manifest(step, 0, 0, {}, "", {}, files=(FileEntry(STATE, 2, 0),))
    return store.commit(staging, manifest)


def steps(store):
    return [entry.step for entry in store.entries()]


def test_numbers_count_saves_and_not_steps(tmp_path):
    store = Store(str(tmp_path))
    for step in (20, 10, 10):
        save(store, step)
    assert [entry.name for entry in store.entries()] == [
        "000001-step-20",
        "000002-step-10",
        "000003-step-10",
    ]
    assert store.find(10).name == "000003-step-10"
    assert read_manifest(store.find(20).path).step == 20
    with pytest.raises(ValueError, match=r"Available steps: 20, 10, 10. Received: step=7"):
        store.find(7)


def test_what_is_being_written_is_no_checkpoint(tmp_path):
    store = Store(str(tmp_path))
    staging = store.staging(5)
    files.gfile.makedirs(staging)
    assert store.stagings() == store.stagings(5) == [staging]
    assert (store.stagings(6), steps(store)) == ([], [])
    assert final_name(staging) == "000001-step-5"
    store.clean()
    assert store.stagings() == []


def test_deleting_leaves_files_of_others(tmp_path):
    store = Store(str(tmp_path))
    save(store, 1)
    entry = store.find(1)
    (tmp_path / entry.name / "notes.txt").write_text("mine")
    store.delete(entry)
    assert steps(store) == []
    assert [path.name for path in (tmp_path / entry.name).iterdir()] == ["notes.txt"]


def test_an_interrupted_deletion_is_continued(tmp_path):
    store = Store(str(tmp_path))
    folder = tmp_path / parse_path(save(store, 1)).name
    (folder / "manifest.json").rename(folder / CONDEMNED)
    assert steps(store) == []
    store.clean()
    assert not folder.exists()


def test_a_damaged_one_is_set_aside(tmp_path):
    store = Store(str(tmp_path))
    path = save(store, 3)
    (tmp_path / path / "manifest.json").write_text("{")
    with pytest.raises(DamagedError, match=r"manifest.json is not a checkpoint manifest"):
        read_manifest(path)
    assert store.set_aside(store.find(3)).endswith("/damaged-000001-step-3")
    assert steps(store) == []
    assert save(store, 4).endswith("000002-step-4")  # Its number is not used again.


def test_discarding_removes_our_files_only(tmp_path):
    (tmp_path / STATE).write_text("{}")
    (tmp_path / "notes.txt").write_text("mine")
    discard(str(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_paths():
    assert parse_path("/x/000012-step-345/").step == 345
    assert parse_path("/x/checkpoints") is None
