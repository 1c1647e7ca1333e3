"""Files on this machine and elsewhere: `ram://` stands in for a bucket."""

import os
import uuid
import zlib

import pytest
import tensorflow as tf

from keras_mgpu.system import files

BYTES = os.urandom(3 * files.CHUNK + 5)


@pytest.fixture(params=["local", "elsewhere"])
def folder(request, tmp_path):
    if request.param == "local":
        return str(tmp_path)
    path = f"ram://{uuid.uuid4().hex}"
    tf.io.gfile.makedirs(path)
    return path


def write(path, data=b"text"):
    with tf.io.gfile.GFile(path, "wb") as file:
        file.write(data)


def test_what_the_operating_system_can_reach():
    assert files.local_path("/tmp/a") == "/tmp/a"
    assert files.local_path("file:///tmp/a") == "/tmp/a"
    assert files.local_path("gs://bucket/a") is None


def test_text_is_read_as_it_was_written(folder):
    path = files.join(folder, "état.json")
    files.write_text(path, "a\nü")
    assert files.read_text(path) == "a\nü"
    assert files.size(path) == 4
    files.remove(path)
    files.remove(path)  # It is gone already.
    assert files.names_in(folder) == []


def test_a_checksum_reads_every_byte_and_says_how_far_it_is(folder):
    path = files.join(folder, "data")
    write(path, BYTES)
    read = []
    assert files.checksum(path, read.append) == zlib.crc32(BYTES)
    assert sum(read) == len(BYTES)
    assert len(read) > 1


def test_a_folder_that_does_not_exist_is_empty(folder):
    assert files.names_in(files.join(folder, "nowhere")) == []


def test_only_an_empty_folder_is_removed(folder):
    inside = files.join(folder, "inside")
    tf.io.gfile.makedirs(inside)
    assert not files.remove_empty(folder)
    assert files.remove_empty(inside)
    assert files.names_in(folder) == []


def test_a_folder_moves_with_all_it_has(folder):
    source, target = files.join(folder, "source"), files.join(folder, "target")
    tf.io.gfile.makedirs(source)
    for name in ("a", "done", "z"):
        write(files.join(source, name))
    files.move_folder(source, target, last="done")
    assert files.names_in(target) == ["a", "done", "z"]
    assert not tf.io.gfile.exists(files.join(source, "a"))


def test_elsewhere_the_file_that_says_done_moves_last(monkeypatch):
    source = f"ram://{uuid.uuid4().hex}/source"
    tf.io.gfile.makedirs(source)
    for name in ("a", "done", "z"):
        write(files.join(source, name))
    moved, rename = [], files.gfile.rename
    monkeypatch.setattr(
        files.gfile, "rename", lambda old, new: (moved.append(old[-4:]), rename(old, new))
    )
    files.move_folder(source, source.replace("source", "target"), last="done")
    assert moved[-1] == "done"


def test_a_directory_stays_where_it_was_when_the_program_goes_elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert files.check_directory("run") == str(tmp_path / "run")
    assert files.check_directory(tmp_path / "run") == str(tmp_path / "run")
    assert files.check_directory("ram://bucket/run") == "ram://bucket/run"


@pytest.mark.parametrize(
    ("directory", "error", "message"),
    [
        (None, TypeError, r"`log_dir` must be a path\. Received: log_dir=None"),
        ("", ValueError, "`log_dir` must not be empty"),
        (__file__, ValueError, "`log_dir` is a file, but must be a directory"),
    ],
)
def test_what_cannot_be_a_directory(directory, error, message):
    with pytest.raises(error, match=message):
        files.check_directory(directory, "log_dir")


def test_a_directory_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(PermissionError, match="Cannot write to"):
        files.make_directory(str(tmp_path / "file" / "below"))


def test_a_directory_that_can_be_written_is_left_empty(tmp_path):
    files.make_directory(str(tmp_path / "new" / "folder"))
    assert list((tmp_path / "new" / "folder").iterdir()) == []
