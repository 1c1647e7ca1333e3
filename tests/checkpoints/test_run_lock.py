"""One run per directory."""

import os

import pytest

from keras_mgpu.checkpoints.run_lock import FILE_NAME, RunLock


def test_a_process_can_lock_again(tmp_path):
    lock = RunLock(str(tmp_path))
    lock.acquire()
    lock.acquire()
    assert str(os.getpid()) in (tmp_path / FILE_NAME).read_text()
    lock.release()
    RunLock(str(tmp_path)).acquire()


def test_another_process_cannot(tmp_path, monkeypatch):
    (tmp_path / FILE_NAME).write_text('{"host": "a", "process": 7}')

    def refuse(*arguments):
        raise OSError

    monkeypatch.setattr("fcntl.lockf", refuse)
    with pytest.raises(RuntimeError, match=r'Another run saves.*"process": 7.*its own directory'):
        RunLock(str(tmp_path)).acquire()


def test_object_stores_have_no_locks():
    RunLock("gs://bucket/checkpoints").acquire()
