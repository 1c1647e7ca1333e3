"""Nothing is lost: processes killed, bits flipped, disks full, directories shared by mistake.

`make torture` runs the same with KERAS_MGPU_TORTURE kills instead of a few.
"""

import datetime
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time

import cluster
import keras
import numpy as np
import pytest
import runs

import keras_mgpu as km
from keras_mgpu.checkpoints import parts, save_session, saver, training_state
from keras_mgpu.checkpoints.damage import damages
from keras_mgpu.checkpoints.store import Store

NUM_KILLS = int(os.environ.get("KERAS_MGPU_TORTURE", "3"))


def start(function, *arguments):
    """Starts a process that has imported everything already."""
    import trainee

    process = cluster.PROCESSES.Process(target=getattr(trainee, function), args=arguments)
    process.start()
    return process


def entries(directory):
    return Store(str(directory)).entries()


def fit(directory, epochs=1, model=None, **options):
    model = model or runs.make_model()
    checkpoint = km.DistributedCheckpoint(directory, **options)
    model.fit(runs.make_data(), epochs=epochs, callbacks=[checkpoint], verbose=0, shuffle=False)
    return model


def test_killed_at_any_time(tmp_path):
    seed = random.randrange(2**32)
    print(f"seed {seed}")  # noqa: T201  Shown if it fails.
    rng = random.Random(seed)
    save_freq, epochs = 3, 8 * NUM_KILLS  # More than they come to train.
    directory, step = tmp_path / "checkpoints", cluster.PROCESSES.Value("q", 0)
    whole = start("live", None, tmp_path / "whole.npz", step, epochs, save_freq)
    whole.join()
    assert whole.exitcode == 0
    phases = dict.fromkeys(("starting", "resuming", "training and saving"), 0)
    longest_loss = 0
    for _ in range(NUM_KILLS):
        phase = rng.choices(list(phases), weights=(1, 1, 8))[0]
        phases[phase] += 1
        step.value = -1
        process = start("live", directory, tmp_path / "result.npz", step, epochs, save_freq)
        begin = None
        while process.is_alive() and phase != "starting":
            begin = step.value if begin in (None, -1) else begin
            if begin >= 0 and (phase == "resuming" or step.value > begin):
                break
            time.sleep(0.001)
        time.sleep(rng.uniform(0, 0.5))
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        found = entries(directory)
        for entry in found:
            assert damages(entry) == []
        if step.value > 0:
            reached = found[-1].step if found else 0
            longest_loss = max(longest_loss, step.value - reached)
    # Since the last save there is at most an interval; that save itself may be under way.
    assert longest_loss <= 2 * save_freq
    last = start("live", directory, tmp_path / "result.npz", step, epochs, save_freq)
    last.join()
    assert last.exitcode == 0
    assert not list(directory.glob(".*.partial"))
    assert not list(directory.glob("damaged*"))
    one, other = np.load(tmp_path / "whole.npz"), np.load(tmp_path / "result.npz")
    assert one.files == other.files
    for name in one.files:
        np.testing.assert_array_equal(one[name], other[name], err_msg=name)
    print(f"killed {phases}, at most {longest_loss} steps lost")  # noqa: T201


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Two checkpoints, of steps 4 and 8."""
    keras.utils.set_random_seed(0)
    directory = tmp_path_factory.mktemp("saved")
    fit(directory, epochs=2)
    return directory


KINDS = (
    "manifest.json",
    "variables.index",
    "variables.data-00000-of-00001",
    "state.json",
    "model.json",
)


def flip(path, rng):
    """Flips a bit, but not of whitespace in JSON, which does not matter."""
    data = bytearray(path.read_bytes())
    place = rng.randrange(len(data))
    while path.suffix == ".json" and chr(data[place]).isspace():
        place = rng.randrange(len(data))
    data[place] ^= 1 << rng.randrange(8)
    path.write_bytes(data)


def truncate(path, rng):
    data = path.read_bytes()
    path.write_bytes(data[: rng.randrange(len(data))])


def remove(path, rng):
    path.unlink()


def grow(path, rng):
    path.write_bytes(path.read_bytes() + b"\0")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("damage", [flip, truncate, remove, grow])
def test_damage_is_named_and_the_one_before_is_used(saved, tmp_path, caplog, kind, damage):
    for number in range(1 + NUM_KILLS // 10):
        directory = tmp_path / str(number)
        shutil.copytree(saved, directory)
        first, second = entries(directory)
        rng = random.Random(number)
        damage(directory / second.name / kind, rng)
        caplog.clear()
        model = runs.make_model()
        restored = km.restore_checkpoint(directory, model)
        assert restored.path == first.path
        assert kind in caplog.text
        assert f"damaged-{second.name}" in caplog.text
        assert [entry.name for entry in entries(directory)] == [first.name]
        assert (directory / f"damaged-{second.name}").is_dir()
        if kind.startswith("variables.data") and damage is flip:
            keys = json.loads((directory / first.name / "manifest.json").read_text())
            names = [each["key"] for each in keys["manifest"]["tensors"]]
            assert any(name in caplog.text for name in names)
        fit(directory, epochs=2, model=model)  # Training continues from there.
        assert entries(directory)[-1].step == 8


def test_every_damage_at_once_is_shown_by_name(saved, tmp_path):
    directory = tmp_path / "all"
    shutil.copytree(saved, directory)
    entry = entries(directory)[-1]
    rng = random.Random(0)
    for kind in KINDS[1:]:
        flip(directory / entry.name / kind, rng)
    found = "\n".join(damages(entry))
    for kind in KINDS[1:]:
        assert kind in found


def test_when_all_are_damaged_nothing_is_touched(saved, tmp_path, caplog):
    directory = tmp_path / "all"
    shutil.copytree(saved, directory)
    for entry in entries(directory):
        flip(directory / entry.name / "variables.data-00000-of-00001", random.Random(1))
    model = runs.make_model()
    before = [v.numpy() for v in model.variables]
    assert km.restore_checkpoint(directory, model) is None
    for old, variable in zip(before, model.variables):
        np.testing.assert_array_equal(old, variable.numpy())
    assert caplog.text.count("is damaged") == 2


def test_one_checkpoint_asked_for_by_name_is_not_replaced_by_another(saved, tmp_path):
    directory = tmp_path / "one"
    shutil.copytree(saved, directory)
    entry = entries(directory)[-1]
    flip(directory / entry.name / "variables.data-00000-of-00001", random.Random(1))
    with pytest.raises(ValueError, match=r"The checkpoint is damaged: variables.data"):
        km.restore_checkpoint(entry.path, runs.make_model())


def test_a_full_disk(tmp_path):
    """The error is raised in the training thread, and earlier checkpoints stay."""
    directory = tmp_path / "checkpoints"
    fit(directory)
    process = start("limited", directory, tmp_path / "error.txt", 2000)
    process.join()
    assert process.exitcode == 0
    text = (tmp_path / "error.txt").read_text()
    assert text.startswith("CheckpointError: The checkpoint of step 8 could not be saved in")
    assert "File too large" in text
    assert [entry.step for entry in entries(directory)] == [4]
    assert damages(entries(directory)[0]) == []
    assert not list(directory.glob(".*.partial"))


def test_a_directory_that_cannot_be_written(tmp_path):
    directory = tmp_path / "read-only"
    directory.mkdir()
    if os.geteuid() == 0:  # Root can write everywhere except here.
        directory = "/proc/sys/checkpoints"
    else:
        directory.chmod(0o500)
    with pytest.raises(PermissionError, match="Cannot write to"):
        fit(directory)
    with pytest.raises(PermissionError, match="Cannot write to"):
        km.save_checkpoint(directory, runs.make_model())


@pytest.mark.parametrize("is_same_callback", [True, False])
def test_a_fit_that_raised_is_tried_again_while_it_is_still_being_saved(
    tmp_path, monkeypatch, caplog, is_same_callback
):
    def train(checkpoint, model, **options):
        return runs.train(model, runs.make_data(), checkpoint, **options)

    is_next_fit = threading.Event()

    def write_late(*arguments):
        assert is_next_fit.wait(timeout=60)
        return parts.write_part(*arguments)

    def finish_earlier_save(directory):
        is_next_fit.set()
        saver.finish_earlier_save(directory)

    options = {"save_freq": 2, "keep_last": 9}
    runs.fresh()
    whole = train(km.DistributedCheckpoint(tmp_path / "whole", **options), runs.make_model())
    runs.fresh()
    monkeypatch.setattr(saver, "write_part", write_late)
    model = runs.make_model()
    checkpoint = km.DistributedCheckpoint(tmp_path / "parts", **options)
    assert train(checkpoint, model, interrupt_after=3) is None
    assert entries(tmp_path / "parts") == []
    monkeypatch.setattr(save_session, "finish_earlier_save", finish_earlier_save)
    if not is_same_callback:
        checkpoint = km.DistributedCheckpoint(tmp_path / "parts", **options)
    runs.assert_same(whole, train(checkpoint, model))
    assert [entry.step for entry in entries(tmp_path / "parts")] == [2, 4, 6, 8, 10, 12]
    assert all(damages(entry) == [] for entry in entries(tmp_path / "parts"))
    assert [record for record in caplog.records if record.levelname == "WARNING"] == []


def test_two_runs_in_one_directory(tmp_path):
    fit(tmp_path)
    hold = (
        "import fcntl, sys, time\n"
        "file = open(sys.argv[1], 'r+')\n"
        "fcntl.lockf(file, fcntl.LOCK_EX)\n"
        "print('locked', flush=True)\n"
        "time.sleep(600)\n"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", hold, str(tmp_path / "run.lock")], stdout=subprocess.PIPE
    )
    try:
        assert other.stdout.readline() == b"locked\n"
        with pytest.raises(RuntimeError, match="Another run saves its checkpoints in"):
            fit(tmp_path, epochs=2)
        assert [entry.step for entry in entries(tmp_path)] == [4]
    finally:
        os.kill(other.pid, signal.SIGKILL)
        other.wait()
        other.stdout.close()
    fit(tmp_path, epochs=2)  # The lock ended with the process that held it.
    assert [entry.step for entry in entries(tmp_path)] == [4, 8]


def test_a_clock_that_was_set_back(tmp_path, monkeypatch):
    fit(tmp_path, epochs=1)

    class Past(datetime.datetime):
        @classmethod
        def now(cls, tz=None):
            return cls(1999, 1, 1, tzinfo=tz)

    class Clock:
        timezone = datetime.timezone
        datetime = Past

    monkeypatch.setattr(training_state, "datetime", Clock)
    monkeypatch.setattr(time, "time", lambda: 915148800.0)
    fit(tmp_path, epochs=3, keep_last=2)
    assert [entry.step for entry in entries(tmp_path)] == [8, 12]
    monkeypatch.undo()
    for entry in entries(tmp_path):
        os.utime(entry.path, (0, 0))
    fit(tmp_path, epochs=4, keep_last=2)
    assert [entry.step for entry in entries(tmp_path)] == [12, 16]


def test_a_worker_that_dies_during_a_save_is_named(tmp_path):
    processes = cluster.start_workers(2, "die", tmp_path)
    for process in processes:
        process.communicate(timeout=120)
    text = (tmp_path / "error.txt").read_text()
    assert "worker:1 did not write its part of step 2: it had 0.5 seconds" in text
    (entry,) = entries(tmp_path / "die")
    assert entry.step == 1
    assert damages(entry) == []
    assert not list((tmp_path / "die").glob(".*.partial"))


def steps_of(path):
    return [0, *map(int, path.read_text().split())] if path.exists() else [0]


def test_sigterm_to_one_of_two_workers_saves_both(tmp_path):
    """The run that continues ends like one that was never stopped."""
    (tmp_path / "whole").mkdir()
    cluster.finish(cluster.start_workers(2, "loop", tmp_path / "whole", "2", "100"))
    (tmp_path / "parts").mkdir()
    processes = cluster.start_workers(2, "loop", tmp_path / "parts", "2", "100")
    while steps_of(tmp_path / "parts" / "loop 1.txt")[-1] < 5:
        assert processes[1].poll() is None, processes[1].communicate()[0][-3000:]
        time.sleep(0.01)
    os.kill(processes[1].pid, signal.SIGTERM)
    for process in processes:
        process.communicate(timeout=120)
    assert [process.returncode for process in processes] == [143, 143]
    (entry,) = entries(tmp_path / "parts" / "loop")
    assert entry.step == steps_of(tmp_path / "parts" / "loop 0.txt")[-1]
    assert entry.step == steps_of(tmp_path / "parts" / "loop 1.txt")[-1]
    cluster.finish(cluster.start_workers(2, "loop", tmp_path / "parts", "2", "100"))
    for index in (0, 1):
        one = np.load(tmp_path / "whole" / f"loop {index}.npz")
        other = np.load(tmp_path / "parts" / f"loop {index}.npz")
        for name in one.files:
            np.testing.assert_array_equal(one[name], other[name], err_msg=name)
