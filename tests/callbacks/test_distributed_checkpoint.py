"""The callback: what it saves and keeps, what it logs, and what it refuses."""

import json
import logging
import os
import signal
import threading
import time

import keras
import numpy as np
import pytest
import runs
import tensorflow as tf
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import keras_mgpu as km
from keras_mgpu.checkpoints import bundle, progress
from keras_mgpu.checkpoints.saver import CheckpointError
from keras_mgpu.checkpoints.store import Store

STEPS = 4  # In an epoch.


def fit(directory, *callbacks, epochs=1, model=None, **options):
    model = model or runs.make_model()
    checkpoint = km.DistributedCheckpoint(directory, **options)
    model.fit(
        runs.make_data(),
        epochs=epochs,
        callbacks=[checkpoint, *callbacks],
        verbose=0,
        shuffle=False,
    )
    return model


def steps(directory):
    return [entry.step for entry in Store(str(directory)).entries()]


def tiny(width=3):
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(width, name="out")])
    model.compile("sgd", "mse")
    return model


class Scripted(keras.callbacks.Callback):
    """Puts given values into the logs of each epoch."""

    def __init__(self, values):
        super().__init__()
        self.values_to_come = list(values)

    def on_epoch_end(self, epoch, logs=None):
        logs["score"] = self.values_to_come[epoch]


# What is saved when, and what stays.


def test_the_last_ones_stay(tmp_path):
    fit(tmp_path, epochs=4, keep_last=2)
    assert steps(tmp_path) == [3 * STEPS, 4 * STEPS]


def test_the_best_ones_stay(tmp_path):
    model = runs.make_model()
    checkpoint = km.DistributedCheckpoint(
        tmp_path, save_freq=3, keep_last=1, keep_best=2, monitor="score", mode="max"
    )
    callbacks = [Scripted([0.1, 0.9, 0.5, 0.2]), checkpoint]
    model.fit(runs.make_data(), epochs=4, callbacks=callbacks, verbose=0, shuffle=False)
    assert steps(tmp_path) == [2 * STEPS, 3 * STEPS, 4 * STEPS]


def test_one_checkpoint_per_interval_of_steps_stays(tmp_path):
    fit(tmp_path, epochs=4, save_freq=1, keep_last=1, keep_every=6)
    assert steps(tmp_path) == [6, 12, 16]


def test_batches_are_counted_across_epochs(tmp_path):
    fit(tmp_path, epochs=2, save_freq=3, keep_last=9)
    assert steps(tmp_path) == [3, 6, 8]


def test_the_end_is_saved_once(tmp_path):
    fit(tmp_path, epochs=2, save_freq=8, keep_last=9)
    assert steps(tmp_path) == [8]


def test_as_often_as_an_overhead_allows(tmp_path):
    fit(tmp_path, epochs=2, overhead=0.5, keep_last=99)
    assert steps(tmp_path)[0] == 1
    fit(tmp_path / "rare", epochs=2, overhead=1e-6, keep_last=99)
    assert steps(tmp_path / "rare") == [1, 8]


def test_the_users_own_files_stay(tmp_path):
    fit(tmp_path, epochs=1)
    (entry,) = Store(str(tmp_path)).entries()
    for folder in (tmp_path, tmp_path / entry.name):
        (folder / "notes.txt").write_text("mine")
    (tmp_path / ".000009-step-9.partial").mkdir()
    (tmp_path / ".000009-step-9.partial" / "notes.txt").write_text("mine")
    fit(tmp_path, epochs=5, keep_last=1)
    assert len(list(tmp_path.rglob("notes.txt"))) == 3
    assert steps(tmp_path) == [20]


def test_what_was_half_written_or_half_deleted_goes(tmp_path):
    fit(tmp_path, epochs=2, keep_last=9)
    partial = tmp_path / ".000007-step-70.partial"
    partial.mkdir()
    for name in ("part-0-0.data-00000-of-00001", "part-0-0.index", "manifest.json", "state.json"):
        (partial / name).write_text("x")
    first, second = Store(str(tmp_path)).entries()
    condemned = tmp_path / first.name
    (condemned / "manifest.json").rename(condemned / "manifest.deleted.json")
    (condemned / "state.json").unlink()
    assert km.latest_checkpoint(tmp_path) == second.path
    fit(tmp_path, epochs=2)
    assert not partial.exists()
    assert not condemned.exists()


def test_anything_that_gfile_writes(tmp_path):
    directory = "ram://checkpoints"
    model = fit(directory, epochs=3, keep_last=2)
    assert steps(directory) == [8, 12]
    other = runs.make_model()
    assert km.restore_checkpoint(directory, other).step == 12
    for one, two in zip(model.variables, other.variables):
        np.testing.assert_array_equal(one.numpy(), two.numpy())
    url = f"file://{tmp_path}"
    fit(url)
    assert km.restore_checkpoint(url, other).step == 4


# In the background.


def test_training_continues_while_a_checkpoint_is_written(tmp_path, monkeypatch):
    writing, go_on = threading.Event(), threading.Event()
    write = bundle.write

    def slow(prefix, tensors):
        writing.set()
        assert go_on.wait(30)
        write(prefix, tensors)

    monkeypatch.setattr(bundle, "write", slow)
    seen = []

    def after(batch, logs):
        if batch == 1:
            assert writing.wait(30)  # The save of the first batch, and we are in the second.
        if batch == 2:
            seen.append(steps(tmp_path))
            go_on.set()

    watch = keras.callbacks.LambdaCallback(on_train_batch_end=after)
    model = runs.make_model()
    checkpoint = km.DistributedCheckpoint(tmp_path, overhead=1e-6)
    model.fit(runs.make_data(), epochs=1, callbacks=[checkpoint, watch], verbose=0, shuffle=False)
    assert seen == [[]]
    assert steps(tmp_path) == [1, 4]


@pytest.mark.parametrize("jit_compile", [False, True])
def test_what_is_written_is_the_state_at_the_save(tmp_path, monkeypatch, jit_compile):
    """Even though the weights have moved on when it is written."""
    write = bundle.write

    def late(prefix, tensors):
        time.sleep(0.3)
        write(prefix, tensors)

    monkeypatch.setattr(bundle, "write", late)
    values = {}

    def record(batch, logs):
        values[batch + 1] = [v.numpy().copy() for v in model.trainable_variables]

    model = runs.make_model(run_eagerly=False)
    model.compile("adam", model.loss, jit_compile=jit_compile)
    fit(
        tmp_path,
        keras.callbacks.LambdaCallback(on_train_batch_end=record),
        model=model,
        save_freq=2,
        keep_last=9,
    )
    other = runs.make_model()
    other.compile("adam", model.loss)
    km.restore_checkpoint(Store(str(tmp_path)).find(2).path, other)
    for one, two in zip(values[2], other.trainable_variables):
        np.testing.assert_array_equal(one, two.numpy())


def test_an_error_in_the_background_is_raised_in_training(tmp_path, monkeypatch):
    def fail(prefix, tensors):
        raise OSError(28, "No space left on device")

    before = signal.getsignal(signal.SIGTERM)
    fit(tmp_path)
    monkeypatch.setattr(bundle, "write", fail)
    with pytest.raises(CheckpointError, match=r"step \d+ could not be saved.*No space left"):
        fit(tmp_path, epochs=3, save_freq=1)
    assert signal.getsignal(signal.SIGTERM) == before
    assert steps(tmp_path) == [STEPS]
    assert not list(tmp_path.glob(".*"))
    monkeypatch.undo()
    fit(tmp_path, epochs=3)
    assert steps(tmp_path) == [4, 8, 12]


# Signals.


class AtOnce(Exception):
    """Raised by the handler that was installed before."""


@pytest.fixture
def previous():
    def handler(number, frame):
        raise AtOnce

    before = signal.signal(signal.SIGTERM, handler)
    yield handler
    signal.signal(signal.SIGTERM, before)


class SendSigterm(keras.callbacks.Callback):
    def __init__(self, after, times=1):
        super().__init__()
        self.left, self.times = after, times

    def on_train_batch_end(self, batch, logs=None):
        self.left -= 1
        if self.left == 0:
            for _ in range(self.times):
                os.kill(os.getpid(), signal.SIGTERM)
                time.sleep(0.01)


@pytest.mark.parametrize("after", [2, STEPS])
def test_sigterm_saves_and_stops(tmp_path, caplog, after):
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as stop:
        fit(tmp_path, SendSigterm(after), epochs=3)
    assert stop.value.code == 143
    assert signal.getsignal(signal.SIGTERM) == before
    assert steps(tmp_path) == [after]
    assert f"SIGTERM: step {after} was saved in {tmp_path}" in caplog.text
    caplog.clear()
    with caplog.at_level(logging.INFO):
        fit(tmp_path, epochs=3)
    assert "Resuming from" in caplog.text
    assert steps(tmp_path)[-1] == 3 * STEPS


def test_a_second_sigterm_stops_at_once(tmp_path, previous):
    with pytest.raises(AtOnce):
        fit(tmp_path, SendSigterm(2, times=2), epochs=3)
    assert signal.getsignal(signal.SIGTERM) is previous
    assert steps(tmp_path) == []


def test_after_an_error_in_training_signals_are_what_they_were(tmp_path, previous):
    """Keras does not notify callbacks when training has failed."""
    with pytest.raises(runs.Interrupted):
        fit(tmp_path, runs.InterruptAfter(2))
    with pytest.raises(AtOnce):
        signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is previous


def test_a_signal_during_the_last_batch_still_ends_the_program(tmp_path, previous):
    with pytest.raises(AtOnce):
        fit(tmp_path, SendSigterm(STEPS), epochs=1)
    assert steps(tmp_path) == [STEPS]


def test_no_signals_outside_the_main_thread(tmp_path):
    errors = []

    def train():
        try:
            fit(tmp_path)
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=train)
    thread.start()
    thread.join()
    assert not errors
    assert steps(tmp_path) == [STEPS]


# What is logged.


def test_a_complete_run_warns(tmp_path, caplog):
    fit(tmp_path)
    fit(tmp_path)
    assert "is complete, so nothing was trained" in caplog.text
    assert steps(tmp_path) == [STEPS]


def test_data_in_other_batches_continues_at_the_next_epoch(tmp_path, caplog):
    with pytest.raises(runs.Interrupted):
        fit(tmp_path, runs.InterruptAfter(3), epochs=2, save_freq=1)
    x, y = runs.arrays()
    model = runs.make_model()
    history = model.fit(
        km.resumable(x, y, batch_size=5),
        epochs=2,
        callbacks=[km.DistributedCheckpoint(tmp_path)],
        verbose=0,
        shuffle=False,
    )
    assert history.epoch == [1]
    assert "batches of another size" in caplog.text


def test_long_reads_show_progress(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(progress, "LOG_SECONDS", 0)
    fit(tmp_path)
    with caplog.at_level(logging.INFO):
        km.restore_checkpoint(tmp_path, runs.make_model())
    assert "Reading 000001-step-4: 100 %" in caplog.text


# TensorBoard.


def test_scalars(tmp_path):
    fit(tmp_path / "c", epochs=3, keep_last=1, log_dir=tmp_path / "logs")
    events = EventAccumulator(str(tmp_path / "logs" / "checkpoints"))
    events.Reload()

    def values(name):
        found = events.Tensors(f"checkpoint/{name}")
        return {each.step: float(tf.make_ndarray(each.tensor_proto)) for each in found}

    assert values("kept") == {4: 1, 8: 1, 12: 1}
    assert values("deleted") == {4: 0, 8: 1, 12: 1}
    for name in ("stall_seconds", "copy_seconds", "write_seconds", "commit_seconds"):
        assert all(value > 0 for value in values(name).values()), name
    (entry,) = Store(str(tmp_path / "c")).entries()
    data = [p for p in (tmp_path / "c" / entry.name).iterdir() if ".data-" in p.name]
    assert values("bytes")[12] == sum(p.stat().st_size for p in data)
    assert values("bytes_per_second")[12] > 0


# Models and checkpoints that do not belong together.


def test_the_differences_are_listed_and_nothing_is_changed(tmp_path):
    km.save_checkpoint(tmp_path, tiny())
    inputs = keras.Input((8,))
    x = keras.layers.Dense(4, name="hidden")(inputs)
    model = keras.Model(inputs, keras.layers.Dense(3, name="out")(x))
    model.compile(keras.optimizers.SGD(momentum=0.9), "mse")
    before = [v.numpy() for v in model.variables]
    with pytest.raises(ValueError, match="Nothing was changed") as error:
        km.restore_checkpoint(tmp_path, model)
    text = str(error.value)
    assert "missing in the checkpoint (6):" in text
    assert "  model/hidden/kernel\n" in text
    assert "  optimizer/momentum/out/kernel\n" in text
    assert "model/out/kernel: float32[8, 3] in the checkpoint, float32[4, 3] in the model" in text
    for old, variable in zip(before, model.variables):
        np.testing.assert_array_equal(old, variable.numpy())


def test_restoring_what_fits(tmp_path, caplog):
    saved = tiny()
    km.save_checkpoint(tmp_path, saved)
    model = tiny()
    model.add(keras.layers.Dense(2, name="more"))
    model.compile("sgd", "mse")
    assert km.restore_checkpoint(tmp_path, model, strict=False).step == 0
    np.testing.assert_array_equal(saved.weights[0].numpy(), model.weights[0].numpy())
    assert "Only what fits" in caplog.text
    assert "model/more/kernel" in caplog.text


def test_resuming_with_another_model_is_refused(tmp_path):
    fit(tmp_path)
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(3)])
    model.compile("sgd", runs.make_model().loss)
    with pytest.raises(ValueError, match="does not match the model"):
        fit(tmp_path, model=model)
    fit(tmp_path, epochs=2)  # The refusal left nothing locked.


def test_a_model_made_again_in_the_same_process(tmp_path):
    """Keras calls its layers `dense_2` and its optimizer `adam_1` then."""
    first = runs.make_model()
    first.fit(runs.make_data(), verbose=0, shuffle=False)
    km.save_checkpoint(tmp_path, first)
    second = runs.make_model()
    assert {v.path for v in first.variables}.isdisjoint(v.path for v in second.variables)
    km.restore_checkpoint(tmp_path, second)
    for one, two in zip(first.optimizer.variables, second.optimizer.variables):
        np.testing.assert_array_equal(one.numpy(), two.numpy())


def test_a_model_from_a_file_continues(tmp_path):
    first = runs.make_model()
    first.fit(runs.make_data(), verbose=0, shuffle=False)
    km.save_checkpoint(tmp_path / "c", first)
    other = runs.make_model()
    other.fit(runs.make_data(), verbose=0, shuffle=False)
    other.save(tmp_path / "m.keras")
    second = keras.models.load_model(tmp_path / "m.keras")
    km.restore_checkpoint(tmp_path / "c", second)
    for one, two in zip(first.variables, second.variables):
        np.testing.assert_array_equal(one.numpy(), two.numpy())


def test_shared_and_nested_layers_and_equal_names(tmp_path):
    def make():
        shared = keras.layers.Dense(8, name="same")
        inner = keras.Sequential([keras.Input((8,)), keras.layers.Dense(8, name="same")])
        inputs = keras.Input((8,))
        model = keras.Model(inputs, shared(inner(shared(inputs))))
        model.compile("adam", "mse")
        return model

    first, second = make(), make()
    first.fit(np.ones((4, 8)), np.ones((4, 8)), verbose=0)
    km.save_checkpoint(tmp_path, first)
    km.restore_checkpoint(tmp_path, second)
    for one, two in zip(first.variables, second.variables):
        np.testing.assert_array_equal(one.numpy(), two.numpy())


# Bad input.


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"keep_best": 2}, "`keep_best` needs a value to compare"),
        ({"keep_last": 0}, "`keep_last` must be a positive integer"),
        ({"keep_best": -1}, "`keep_best` must be a non-negative integer"),
        ({"keep_every": 0}, "`keep_every` must be"),
        ({"save_freq": "batch"}, "`save_freq` must be"),
        ({"save_freq": 3, "seconds": 3}, "not both"),
        ({"mode": "best"}, "`mode` must be"),
    ],
)
def test_bad_arguments(tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        km.DistributedCheckpoint(tmp_path, **options)


def test_a_directory_that_is_a_file(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="`directory` is a file"):
        km.DistributedCheckpoint(tmp_path / "file")
    with pytest.raises(ValueError, match="`directory` is a file"):
        km.save_checkpoint(tmp_path / "file", tiny())
    with pytest.raises(TypeError, match="`directory` must be a path"):
        km.DistributedCheckpoint(3)


def test_a_directory_below_a_file(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(PermissionError, match="Cannot write to"):
        fit(tmp_path / "file" / "below")


def test_a_monitored_name_that_never_appears(tmp_path):
    with pytest.raises(ValueError, match=r"an epoch logs: accuracy, loss. Received: mon"):
        fit(tmp_path, monitor="val_loss", keep_best=1)
    fit(tmp_path)


def test_a_manifest_of_a_newer_version_is_not_skipped(tmp_path):
    import zlib

    fit(tmp_path)
    (path,) = tmp_path.glob("*/manifest.json")
    fields = json.loads(path.read_text())["manifest"]
    fields["version"] = 2
    checksum = zlib.crc32(json.dumps(fields, sort_keys=True).encode())
    path.write_text(json.dumps({"crc32": checksum, "manifest": fields}))
    with pytest.raises(ValueError, match="newer keras_mgpu"):
        fit(tmp_path, epochs=2)
    assert path.exists()


def test_a_model_without_variables_yet(tmp_path):
    model = keras.Sequential([keras.layers.Dense(3)])
    with pytest.raises(ValueError, match="The model has no variables yet"):
        km.save_checkpoint(tmp_path, model)


def test_an_empty_directory(tmp_path):
    assert km.latest_checkpoint(tmp_path) is None
    assert km.latest_checkpoint(tmp_path / "missing") is None
    assert km.restore_checkpoint(tmp_path, tiny()) is None


# Custom loops.


def test_a_loop_without_callbacks(tmp_path):
    def one(num_epochs, stop_after=None):
        runs.fresh()
        model, data = runs.make_model(), runs.make_data()
        start = km.restore_checkpoint(tmp_path, model, data=data)
        epoch, batch = (start.epoch, start.batch) if start else (0, 0)
        step = start.step if start else 0
        while epoch < num_epochs:
            for x, y in data:
                model.train_on_batch(x, y)
                step, batch = step + 1, batch + 1
                km.save_checkpoint(
                    tmp_path, model, step=step, epoch=epoch, batch=batch, data=data, keep_last=2
                )
                if step == stop_after:
                    return None
            epoch, batch = epoch + 1, 0
        return [v.numpy() for v in [*model.variables, *model.optimizer.variables]]

    def whole():
        runs.fresh()
        model, data = runs.make_model(), runs.make_data()
        for _ in range(2):
            for x, y in data:
                model.train_on_batch(x, y)
        return [v.numpy() for v in [*model.variables, *model.optimizer.variables]]

    expected = whole()
    assert one(2, stop_after=6) is None
    assert steps(tmp_path) == [5, 6]
    for a, b in zip(expected, one(2)):
        np.testing.assert_array_equal(a, b)


def test_a_loop_that_reports_only_the_ends_of_batches(tmp_path):
    model = runs.make_model()
    checkpoint = km.DistributedCheckpoint(tmp_path)
    callbacks = keras.callbacks.CallbackList([checkpoint], model=model)
    callbacks.on_train_begin()
    for number, (x, y) in enumerate(runs.make_data()):
        model.train_on_batch(x, y)
        callbacks.on_train_batch_end(number)
    callbacks.on_train_end()
    assert steps(tmp_path) == [STEPS]


def test_an_optimizer_outside_the_model(tmp_path):
    def make():
        model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(3, name="out")])
        optimizer = keras.optimizers.Adam()
        optimizer.build(model.trainable_variables)
        return model, optimizer

    model, optimizer = make()
    optimizer.apply([tf.ones_like(v) for v in model.trainable_variables])
    km.save_checkpoint(tmp_path, model, optimizer=optimizer, values={"loss": 0.5})
    other, other_optimizer = make()
    restored = km.restore_checkpoint(tmp_path, other, optimizer=other_optimizer)
    assert (restored.step, restored.values) == (1, {"loss": 0.5})
    for one, two in zip(optimizer.variables, other_optimizer.variables):
        np.testing.assert_array_equal(one.numpy(), two.numpy())
