"""What arrives in the event files is what the GPUs' curves said.

The GPUs are a stand-in for the driver's library with its real ABI, loaded by NVIDIA's own package
in a process of its own.
"""

import ctypes
import inspect
import os
import re
import shutil
import subprocess
import sys
import threading
import time

import cluster
import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import keras_mgpu as km
from keras_mgpu.monitoring import catalogue, monitor, nvml_source, visible
from keras_mgpu.monitoring.rows import make_rows
from keras_mgpu.monitoring.series import Sample, Samples, Series, Summary
from keras_mgpu.monitoring.steps import Progress

HERE = cluster.HERE


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    return cluster.compile_driver("driver.c", tmp_path_factory.mktemp("driver"))


@pytest.fixture
def run(driver, tmp_path):
    """Runs a task of metered.py; returns its log."""

    def run(task, num_gpus=8, **environment):
        result = subprocess.run(
            [sys.executable, str(HERE / "metered.py"), task, str(tmp_path)],
            env={
                **{name: os.environ[name] for name in os.environ if "CUDA" not in name},
                "LD_LIBRARY_PATH": str(driver),
                "KERAS_MGPU_TEST_GPUS": str(num_gpus),
                **environment,
            },
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert result.returncode == 0, result.stderr[-3000:]
        return result.stderr

    return run


def scalars(folder, run):
    """Every scalar of a run: values by tag, in the order of steps."""
    events = EventAccumulator(str(folder / run), size_guidance={"tensors": 0, "scalars": 0})
    events.Reload()
    return {tag: events.Scalars(tag) for tag in events.Tags()["scalars"]}


def values(folder, run, tag):
    return [event.value for event in scalars(folder, run)[tag]]


def runs_in(folder):
    return sorted(path.name for path in folder.iterdir() if path.is_dir())


def test_curves_arrive(run, tmp_path):
    log = run("everything", num_gpus=8, KERAS_MGPU_TEST_LOST="100")
    assert runs_in(tmp_path) == [*(f"gpu_{index}" for index in range(8)), "host"]
    for index in (0, 1, 3, 4, 5, 6, 7):
        found = scalars(tmp_path, f"gpu_{index}")
        # A look sees five of the curve's ten samples, or all of them over several steps.
        assert max(event.value for event in found["gpu/utilization_max"]) == 90 + index
        mean = np.mean([event.value for event in found["gpu/utilization"]])
        assert mean == pytest.approx(45 + index, abs=8)
        assert {event.value for event in found["gpu/power"]} == {100.0 + 10 * index}
        assert {event.value for event in found["gpu/temperature"]} == {40.0 + index}
        assert len(found["gpu/temperature"]) < len(found["gpu/memory_used"]) / 2  # At 1 Hz.
        assert {event.value for event in found["gpu/memory_used"]} == {1024.0 * (index + 1)}
        for tag in ("gpu/memory_of_this_process", "gpu/memory_of_others"):
            assert {event.value for event in found[tag]} == {512.0 * (index + 1)}
        sent = np.median([event.value for event in found["gpu/nvlink_sent"]])
        assert sent == pytest.approx(1.024 * (index + 1), rel=0.1)
        received = np.median([event.value for event in found["gpu/nvlink_received"]])
        assert received == pytest.approx(2.048 * (index + 1), rel=0.1)
        assert {event.value for event in found["gpu/ecc_corrected"]} == {3.0}
        # So many joules a second, in every step. A single row may be off: the thread can be
        # interrupted between reading the counter and the clock, and the next row lacks that.
        seconds = {e.step: e.value / 1000 for e in scalars(tmp_path, "host")["train/step_time"]}
        rows = found["gpu/energy"][1:-1]  # Training began before the first look.
        watts = [event.value / seconds[event.step] for event in rows]
        assert watts == pytest.approx([100 + 10 * index] * len(rows), rel=0.25)
        assert np.mean(watts) == pytest.approx(100 + 10 * index, rel=0.05)
        per_sample = [event.value * 4 for event in found["gpu/energy_per_sample"]]
        assert per_sample == pytest.approx([e.value for e in found["gpu/energy"]], rel=0.01)
    assert {event.value for event in scalars(tmp_path, "gpu_0")["gpu/throttled_power"]} == {1.0}
    assert {event.value for event in scalars(tmp_path, "gpu_1")["gpu/throttled_heat"]} == {1.0}
    assert set(values(tmp_path, "gpu_0", "gpu/tensor_active")) == {50.0}
    assert "gpu/tensor_active" not in scalars(tmp_path, "gpu_1")
    # The one that supports next to nothing logs the rest, and one line says so.
    assert set(scalars(tmp_path, "gpu_2")) >= {"gpu/temperature", "gpu/memory_used"}
    assert "gpu/utilization" not in scalars(tmp_path, "gpu_2")
    assert len(re.findall("gpu_2 does not tell", log)) == 1


def test_steps_are_neither_lost_nor_doubled(run, tmp_path):
    run("everything", num_gpus=1)
    found = scalars(tmp_path, "gpu_0")["gpu/utilization"]
    steps = [event.step for event in found]
    assert steps == sorted(set(steps))
    assert steps[-1] == 100  # Two epochs of fifty batches.
    times = [event.wall_time for event in found]
    assert times == sorted(times)
    host = scalars(tmp_path, "host")
    assert [event.step for event in host["train/step_time"]][-1] == 100
    assert np.median([e.value for e in host["train/step_time"]]) == pytest.approx(21, abs=8)
    rate = np.median([event.value for event in host["train/samples_per_second"]])
    assert rate == pytest.approx(4 / 0.022, rel=0.4)
    assert all(event.value > 0 for event in host["host/memory"])


def test_only_the_gpus_of_this_job(run, tmp_path):
    """Told apart by their temperatures, for each CUDA_VISIBLE_DEVICES."""
    run("visible", num_gpus=5)
    expected = {
        "unset": [40, 41, 42, 43, 44],
        "1": [41],
        "2,0": [42, 40],
        "GPU-00000aa1": [41],
        "1,-1,2": [41],
        "": [],
        "MIG-part-2": [44],
        "9": [],
    }
    for listed, temperatures in expected.items():
        folder = tmp_path / f"visible {listed}"
        runs = [name for name in runs_in(folder) if name.startswith("gpu")]
        found = [set(values(folder, name, "gpu/temperature")) for name in runs]
        assert found == [{float(each)} for each in temperatures], listed


def test_a_gpu_that_falls_off_the_bus(run, tmp_path):
    log = run("lost", num_gpus=5, KERAS_MGPU_TEST_LOST="0.4")
    assert len(re.findall("gpu_3 is lost to the logs: GPU is lost", log)) == 1
    last = {
        name: scalars(tmp_path, name)["gpu/temperature"][-1].step
        for name in runs_in(tmp_path)
        if name.startswith("gpu")
    }
    assert last["gpu_3"] < 50
    assert last["gpu_0"] == last["gpu_4"] == 50


def test_a_fit_that_raises(run, tmp_path):
    run("raising", num_gpus=1)
    assert "gpu_metrics" not in (tmp_path / "threads.txt").read_text()
    assert scalars(tmp_path, "gpu_0")["gpu/temperature"][-1].step >= 20


def test_a_fork(run, tmp_path):
    run("forking", num_gpus=1)
    assert (tmp_path / "child.txt").read_text() == "7"
    assert scalars(tmp_path, "gpu_0")["gpu/temperature"][-1].step == 50


def test_a_second_run_goes_on_where_the_first_ended(tmp_path):
    """The steps of a restored optimizer, whichever callback is the first in the list."""
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
    for name in ("first", "second"):
        model = keras.models.clone_model(model)
        model.compile("sgd", "mse")
        callbacks = [
            km.GPUMetrics(tmp_path / name, interval=0.02),
            km.DistributedCheckpoint(tmp_path / "checkpoints"),
        ]
        x, y = np.ones((64, 4)), np.ones((64, 2))
        epochs = 1 if name == "first" else 3
        model.fit(x, y, batch_size=4, epochs=epochs, verbose=0, callbacks=callbacks)
    steps = [event.step for event in scalars(tmp_path / "second", "host")["train/step_time"]]
    assert steps[0] > 16
    assert steps[-1] == 48


def test_a_loop_that_tells_of_ends_only(tmp_path):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
    model.compile("sgd", "mse")
    callback = km.GPUMetrics(tmp_path, interval=0.02)
    callbacks = keras.callbacks.CallbackList([callback], model=model)
    callbacks.on_train_begin()
    for batch in range(8):
        callbacks.on_train_batch_end(batch)
    callbacks.on_train_end()
    assert scalars(tmp_path, "host")["host/memory"][-1].step == 8


def test_a_loop_that_forgets_to_end(run, tmp_path):
    run("forgetful", num_gpus=1)
    assert scalars(tmp_path, "gpu_0")["gpu/temperature"][-1].step == 20


def test_without_a_driver(tmp_path, caplog):
    caplog.set_level("INFO")
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
    model.compile("sgd", "mse")
    x, y = np.ones((64, 4)), np.ones((64, 2))
    callback = km.GPUMetrics(tmp_path, interval=0.05)
    model.fit(x, y, batch_size=4, verbose=0, callbacks=[callback])
    assert len([r for r in caplog.records if "No metrics of GPUs" in r.getMessage()]) == 1
    assert set(scalars(tmp_path, "host")) >= {"train/step_time", "host/memory"}


def fit(callback, num_samples=64, **options):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
    model.compile("sgd", "mse", **options)
    x, y = np.ones((num_samples, 4)), np.ones((num_samples, 2))
    model.fit(x, y, batch_size=4, epochs=2, verbose=0, callbacks=[callback])


def test_several_steps_in_one_execution(tmp_path):
    fit(km.GPUMetrics(tmp_path, interval=0.02), steps_per_execution=8)
    found = scalars(tmp_path, "host")["train/step_time"]
    assert found[-1].step == 32
    assert all(event.step % 8 == 0 for event in found)


def test_several_steps_in_one_execution_that_do_not_divide_an_epoch(tmp_path):
    """Of the 16 batches the last one comes alone."""
    fit(km.GPUMetrics(tmp_path, interval=0.001), steps_per_execution=3)
    found = [event.step for event in scalars(tmp_path, "host")["train/step_time"]]
    assert found[-1] == 32
    assert set(found) <= {3, 6, 9, 12, 15, 16, 19, 22, 25, 28, 31, 32}


@pytest.mark.parametrize(("freq", "steps"), [("epoch", {16, 32}), (5, {5, 10, 15, 16, 20, 30, 32})])
def test_steps_that_are_written(tmp_path, freq, steps):
    fit(km.GPUMetrics(tmp_path, interval=0.001, update_freq=freq))
    found = {event.step for event in scalars(tmp_path, "host")["train/step_time"]}
    assert found <= steps | {25}
    assert 32 in found


def test_a_long_last_validation_is_not_lost(tmp_path, monkeypatch):
    """What is sampled in it has no other step to go to than the last."""
    monkeypatch.setattr(monitor, "CATCH_UP_SECONDS", 0.05)  # The host is looked at each time.

    class TakesMemory(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            held = np.ones(1 << 27, "uint8") if epoch == 1 else None
            time.sleep(0.5)
            del held

    callback = km.GPUMetrics(tmp_path, interval=0.05)
    x, y = np.ones((64, 4)), np.ones((64, 2))
    options = {"validation_data": (x, y), "epochs": 2, "verbose": 0}
    small_model().fit(x, y, callbacks=[callback, TakesMemory()], **options)
    found = scalars(tmp_path, "host")
    for events in found.values():
        steps = [event.step for event in events]
        assert steps == sorted(set(steps))
    before, last = found["host/memory_max"][-2:]
    assert last.step == 4
    assert last.value > before.value + 100


def test_a_peak_between_two_looks_that_the_driver_has_forgotten_by_then(run, tmp_path):
    """Its ring goes back two seconds; utilization and power are read once a second."""
    run("seldom", num_gpus=1, KERAS_MGPU_TEST_PEAK="1.5")
    found = scalars(tmp_path, "gpu_0")
    assert found["gpu/utilization_max"][-1].step == 50
    assert max(event.value for event in found["gpu/utilization_max"]) == 100
    assert len(found["gpu/memory_used"]) <= 3  # These were looked at as seldom as asked for.
    # Energy is cut where steps end, all the same.
    seconds = {e.step: e.value / 1000 for e in scalars(tmp_path, "host")["train/step_time"]}
    watts = {event.step: event.value / seconds[event.step] for event in found["gpu/energy"]}
    assert watts.keys() == seconds.keys()
    del watts[max(watts)]  # It has the end of training, too.
    assert list(watts.values()) == pytest.approx([100] * len(watts), rel=0.1)


def test_charts_are_grouped(tmp_path):
    fit(km.GPUMetrics(tmp_path, interval=0.05))
    events = EventAccumulator(str(tmp_path / "host")).Reload()
    content = events.Tensors("custom_scalars__config__")[0].tensor_proto.string_val[0]
    assert b"Power and heat" in content
    assert b"train/samples_per_second" in content


def test_samples_are_counted_with_validation_and_a_last_smaller_batch(tmp_path):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
    model.compile("sgd", "mse")
    x, y = np.ones((10, 4)), np.ones((10, 2))
    callback = km.GPUMetrics(tmp_path)
    model.fit(x, y, batch_size=4, epochs=3, verbose=0, validation_data=(x, y), callbacks=[callback])
    assert callback._samples.total == 30


def small_model():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
    model.compile("sgd", "mse")
    return model


def batches(sizes, seconds):
    """Batches that take their time."""
    for size in sizes:
        time.sleep(seconds)
        yield np.ones((size, 4), "float32"), np.ones((size, 2), "float32")


def test_batches_of_changing_size_are_counted(tmp_path):
    callback = km.GPUMetrics(tmp_path, interval=0.02)
    data = batches([4] * 10 + [40] * 10, 0.01)
    small_model().fit(data, steps_per_epoch=20, shuffle=False, verbose=0, callbacks=[callback])
    assert callback._samples.total == 440
    rates = scalars(tmp_path, "host")["train/samples_per_second"]
    early = np.median([event.value for event in rates if 3 < event.step <= 10])
    late = np.median([event.value for event in rates if event.step > 12])
    assert late > 5 * early


def test_a_loop_that_keras_counts_nothing_for(tmp_path):
    model = small_model()
    model.fit(np.ones((64, 4)), np.ones((64, 2)), verbose=0)
    callback = km.GPUMetrics(tmp_path, interval=0.02)
    callbacks = keras.callbacks.CallbackList([callback], model=model)
    begin(callbacks)
    for batch in range(20):
        callbacks.on_train_batch_begin(batch)
        time.sleep(0.005)
        callbacks.on_train_batch_end(batch)
    callbacks.on_train_end()
    found = scalars(tmp_path, "host")
    assert found["train/step_time"][-1].step == 22  # Two were trained before.
    assert "train/samples_per_second" not in found


class Sleeps(keras.callbacks.Callback):
    """Steps of some length; the run may end in the middle of one."""

    def __init__(self, seconds=0.05, fails_at=None):
        super().__init__()
        self.seconds, self.fails_at, self.num_begun = seconds, fails_at, 0

    def on_train_batch_begin(self, batch, logs=None):
        time.sleep(self.seconds)
        self.num_begun += 1
        if self.num_begun == self.fails_at:
            raise KeyboardInterrupt


def assert_steps(folder, last):
    """Every tag has each of its steps once, in order, and the last one."""
    for tag, events in scalars(folder, "host").items():
        steps = [event.step for event in events]
        assert steps == sorted(set(steps)), tag
        if not tag.startswith(("host/disk", "host/network", "profile/")):
            assert steps[-1] == last, tag


@pytest.mark.filterwarnings("ignore:Your input ran out of data")
@pytest.mark.parametrize("kind", ["generator", "filtered"])
def test_data_of_unknown_length_has_no_further_step(tmp_path, kind):
    """Keras begins a batch before it knows that there is none."""
    data = tf.data.Dataset.from_tensor_slices((np.ones((12, 4)), np.ones((12, 2)))).batch(4)
    data = data.filter(lambda x, y: True) if kind == "filtered" else batches([4] * 3, 0.0)
    callbacks = [Sleeps(), km.GPUMetrics(tmp_path, interval=0.02, timeline_every=1)]
    num_epochs = 3 if kind == "filtered" else 1
    options = {"validation_data": (np.ones((8, 4)), np.ones((8, 2))), "epochs": num_epochs}
    small_model().fit(data, verbose=0, shuffle=False, callbacks=callbacks, **options)
    assert_steps(tmp_path, 3 * num_epochs)
    tf.profiler.experimental.start(str(tmp_path / "mine"))  # None was left running.
    tf.profiler.experimental.stop()


@pytest.mark.parametrize("is_same", [True, False])
def test_a_fit_that_is_interrupted_and_tried_again(tmp_path, is_same):
    model, callback = small_model(), km.GPUMetrics(tmp_path, interval=0.02)
    x, y = np.ones((32, 4)), np.ones((32, 2))
    with pytest.raises(KeyboardInterrupt):
        model.fit(x, y, batch_size=4, verbose=0, callbacks=[callback, Sleeps(fails_at=5)])
    first = callback._monitor
    callback = callback if is_same else km.GPUMetrics(tmp_path, interval=0.02)
    model.fit(x, y, batch_size=4, verbose=0, callbacks=[callback, Sleeps()])
    assert not first.is_running
    assert_steps(tmp_path, 4 + 8)


def test_accumulated_gradients(tmp_path):
    """A step is a batch, whether weights are updated or not."""
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
    model.compile(keras.optimizers.SGD(gradient_accumulation_steps=3), "mse")
    x, y = np.ones((20, 4)), np.ones((20, 2))
    for _ in range(3):
        callbacks = [km.GPUMetrics(tmp_path, interval=0.02), Sleeps(0.03)]
        model.fit(x, y, batch_size=4, verbose=0, callbacks=callbacks)
    assert_steps(tmp_path, 15)


def test_callbacks_that_evaluate(tmp_path):
    """Keras counts the samples of an evaluation where it counts those of training."""
    x, y = np.ones((640, 4)), np.ones((640, 2))

    class Evaluates(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            self.model.evaluate(x, y, verbose=0)

    callback = km.GPUMetrics(tmp_path, interval=10.0)
    callbacks = [Evaluates(), callback]
    small_model().fit(x[:10], y[:10], batch_size=4, epochs=3, verbose=0, callbacks=callbacks)
    assert callback._samples.total == 30


def test_a_loop_with_train_on_batch(tmp_path):
    """Which has Keras count anew for every batch."""
    model, callback = small_model(), km.GPUMetrics(tmp_path, interval=0.02)
    callbacks = keras.callbacks.CallbackList([callback], model=model)
    callbacks.on_train_begin()
    epoch_iterator = iter([4, 4, 4, 3, 3])  # A name that `fit` has, too.
    for number, size in enumerate(epoch_iterator):
        callbacks.on_train_batch_begin(number)
        model.train_on_batch(np.ones((size, 4)), np.ones((size, 2)))
        callbacks.on_train_batch_end(number)
    callbacks.on_train_end()
    assert callback._samples.total == 18
    assert_steps(tmp_path, 5)


def test_a_file_that_is_deleted(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(monitor, "CATCH_UP_SECONDS", 0.05)
    monkeypatch.setattr(monitor, "FLUSH_SECONDS", 0.05)

    class Deletes(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            time.sleep(0.05)
            if batch == 8:
                shutil.rmtree(tmp_path / "host")

    fit_options = {"batch_size": 4, "verbose": 0}
    callbacks = [km.GPUMetrics(tmp_path, interval=0.02), Deletes()]
    small_model().fit(np.ones((64, 4)), np.ones((64, 2)), callbacks=callbacks, **fit_options)
    assert len([r for r in caplog.records if "was deleted" in r.getMessage()]) == 1


def begin(callbacks):
    """Some loops begin in a function of their own."""
    callbacks.on_train_begin()


def test_waiting_for_data_is_seen(tmp_path):
    callback = km.GPUMetrics(tmp_path, interval=0.02, timeline_every=30)
    data = batches([4] * 40, 0.05)  # While the first step is built, some are read ahead.
    small_model().fit(data, steps_per_epoch=40, shuffle=False, verbose=0, callbacks=[callback])
    assert scalars(tmp_path, "host")["profile/input"][-1].value > 0.7


def test_fits_of_the_same_second(tmp_path):
    callback, model = km.GPUMetrics(tmp_path, interval=0.02), small_model()
    for _ in range(4):
        model.fit(np.ones((8, 4)), np.ones((8, 2)), verbose=0, batch_size=4, callbacks=[callback])
    assert {event.step for event in scalars(tmp_path, "host")["train/step_time"]} >= {2, 4, 6, 8}


def test_metrics_that_need_others(run, tmp_path):
    run("derived", num_gpus=2)
    assert list(scalars(tmp_path, "gpu_0")) == ["gpu/energy_per_sample"]
    assert set(scalars(tmp_path, "host")) == {"train/imbalance", "profile/input"}


def test_one_file_that_cannot_be_written(tmp_path, devices, caplog):
    (tmp_path / "pipeline").write_text("in the way")
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2), keras.layers.Dense(2)])
    split = km.PipelineSplit(model, devices[:2], micro_batches=2)
    split.compile("sgd", "mse")
    x, y = np.ones((64, 4)), np.ones((64, 2))
    split.fit(x, y, batch_size=4, verbose=0, callbacks=[km.GPUMetrics(tmp_path, interval=0.02)])
    assert len([r for r in caplog.records if "pipeline is not logged" in r.getMessage()]) == 1
    assert scalars(tmp_path, "host")["train/step_time"][-1].step == 16


def test_a_step_that_fails_while_it_is_traced(tmp_path):
    class Fails(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            if batch == 1:
                raise ValueError("enough")

    callbacks = [km.GPUMetrics(tmp_path, interval=0.02), Fails()]
    with pytest.raises(ValueError, match="enough"):
        small_model().fit(np.ones((64, 4)), np.ones((64, 2)), verbose=0, callbacks=callbacks)
    for _ in range(50):
        if not callbacks[0]._monitor.is_running:
            break
        time.sleep(0.1)
    tf.profiler.experimental.start(str(tmp_path / "mine"))
    tf.profiler.experimental.stop()


def test_a_users_own_profile_comes_first(tmp_path):
    board = keras.callbacks.TensorBoard(tmp_path / "board", profile_batch=(2, 4))
    callbacks = [km.GPUMetrics(tmp_path / "ours", interval=0.02), board]
    x, y = np.ones((64, 4)), np.ones((64, 2))
    small_model().fit(x, y, batch_size=4, verbose=0, callbacks=callbacks)
    assert list((tmp_path / "board").rglob("*.xplane.pb"))
    (event,) = scalars(tmp_path / "ours", "host")["profile/input"]
    assert event.step > 4


def test_a_clock_that_is_set_back(run, tmp_path):
    run("clock", num_gpus=1)
    found = scalars(tmp_path, "gpu_0")
    for tag in ("gpu/power", "gpu/utilization", "gpu/memory_used"):
        assert found[tag][-1].step == 50
        assert len([event for event in found[tag] if event.step > 25]) > 2
    assert all(0 < e.value < 500 for e in scalars(tmp_path, "host")["train/step_time"])


def test_evaluate_with_it(tmp_path):
    callback = km.GPUMetrics(tmp_path)
    x, y = np.ones((4, 4)), np.ones((4, 2))
    small_model().evaluate(x, y, verbose=0, callbacks=[callback])
    with pytest.raises(RuntimeError, match=r"call `callbacks.on_train_begin\(\)` first"):
        callback.on_train_batch_begin(0)


def test_a_log_dir_that_cannot_be_written(tmp_path):
    directory = tmp_path / "read-only"
    directory.mkdir()
    if os.geteuid() == 0:  # Who may do anything is stopped only where nobody may.
        directory = "/proc/sys/logs"
    else:
        directory.chmod(0o500)
    with pytest.raises(PermissionError, match="Cannot write to"):
        fit(km.GPUMetrics(directory))


def test_every_worker_logs_its_own(tmp_path):
    cluster.finish(cluster.start_workers(2, "metrics", tmp_path))
    runs = ["worker_0_host", "worker_1_host"]
    assert runs_in(tmp_path) == [*runs, "worker_times"]
    for run in runs:
        assert scalars(tmp_path, run)["train/step_time"][-1].step == 40
    slowest = {e.step: e.value for e in scalars(tmp_path, runs[0])["train/slowest_worker"]}
    assert {worker for step, worker in slowest.items() if 6 < step <= 20} == {1.0}
    assert {worker for step, worker in slowest.items() if step > 30} == {0.0}
    assert "train/slowest_worker" not in scalars(tmp_path, runs[1])


def test_real_symbols_only():
    """Every name of the driver's library that is used is one of NVIDIA's package."""
    import pynvml

    for module in (nvml_source, visible):
        used = set(re.findall(r"\bnvml\.(\w+)", inspect.getsource(module)))
        used |= set(re.findall(r"\b_nvml\.(\w+)", inspect.getsource(module)))
        used |= set(nvml_source._GPM.values())
        assert len(used) > 3
        assert [name for name in sorted(used) if not hasattr(pynvml, name)] == []
    source = (HERE / "nvml" / "driver.c").read_text()
    functions = set(re.findall(r"^(?:nvmlReturn_t|const char \*) ?(nvml\w+)\(", source, re.M))
    text = inspect.getsource(pynvml)
    assert [name for name in sorted(functions) if f'"{name}"' not in text] == []
    assert len(functions) > 20


def test_structures_are_the_drivers(tmp_path):
    """The stand-in's structures are as large as those that NVIDIA's package hands over."""
    import pynvml

    sizes = {
        "sample_t": pynvml.c_nvmlSample_t,
        "memory_t": pynvml.c_nvmlMemory_t,
        "process_t": pynvml.c_nvmlProcessInfo_v2_t,
        "field_t": pynvml.c_nvmlFieldValue_t,
        "gpm_support_t": pynvml.c_nvmlGpmSupport_t,
        "gpm_metric_t": pynvml.c_nvmlGpmMetric_t,
        "utilization_t": pynvml.c_nvmlUtilization_t,
    }
    printing = "\n".join(f'printf("{name} %zu\\n", sizeof({name}));' for name in sizes)
    source, program = tmp_path / "sizes.c", tmp_path / "sizes"
    include = f'#include "{HERE / "nvml" / "driver.c"}"'
    source.write_text(f"{include}\nint main(void) {{ {printing} return 0; }}\n")
    subprocess.run(["cc", str(source), "-o", str(program)], check=True)
    output = subprocess.run([str(program)], capture_output=True, text=True, check=True).stdout
    found = dict(line.split() for line in output.splitlines())
    assert {name: int(size) for name, size in found.items()} == {
        name: ctypes.sizeof(structure) for name, structure in sizes.items()
    }


# The parts by themselves.

POWER = "gpu_0", "gpu/power"


def series_of_steps(*moments):
    series = Series()
    for moment in moments:
        series.end_step(moment)
    return series


def test_samples_wait_for_their_step():
    series = series_of_steps(2.0, 2.5, 4.0)
    series.add([Sample(*POWER, t, t) for t in (1.0, 5.0, 2.0, 3.0)])
    first, second = series.take(2)
    assert first[POWER] == Summary(total=3.0, count=2, max=2.0, last=2.0)
    assert second == {}
    series.end_step(9.0)
    series.add([Sample(*POWER, 1.5, 7.0)])  # Too late for the first.
    third, fourth = series.take(2)
    assert third[POWER] == Summary(total=10.0, count=2, max=7.0, last=7.0)
    assert fourth[POWER] == Summary(total=5.0, count=1, max=5.0, last=5.0)


def test_kept_samples_go_to_the_same_steps_as_single_ones():
    rng = np.random.default_rng(0)
    times = sorted(rng.integers(0, 100, 200) / 10)
    values = list(rng.standard_normal(200))
    moments = (-1.0, 0.05, 2.0, 2.0, 5.5, 9.0)
    kept, single = series_of_steps(*moments), series_of_steps(*moments)
    kept.add([Samples(*POWER, times, values)])
    single.add([Sample(*POWER, *each) for each in zip(times, values)])
    for one, other in zip(kept.take_all(), single.take_all(), strict=True):
        assert one.keys() == other.keys()
        for key in one:
            assert vars(one[key]) == pytest.approx(vars(other[key]))


def test_the_last_step_gets_what_is_behind_it():
    series = series_of_steps(2.0, 4.0)
    series.add([Sample(*POWER, t, t) for t in (1.0, 3.0, 5.0, 4.5)])
    series.add([Sample("gpu_1", "gpu/power", 9.0, 1.0)])
    first, last = series.take_all()
    assert first[POWER] == Summary(total=1.0, count=1, max=1.0, last=1.0)
    assert last[POWER] == Summary(total=12.5, count=3, max=5.0, last=4.5)
    assert last["gpu_1", "gpu/power"].count == 1


def test_energy_is_shared_between_steps_by_time():
    energy = "gpu_0", "gpu/energy"
    series = series_of_steps(4.0, 5.0, 11.0)
    series.add([Sample(*energy, 10.0, 100.0, since=0.0), Sample(*energy, 12.0, 20.0, since=10.0)])
    assert [taken[energy].total for taken in series.take(3)] == pytest.approx([40, 10, 60])
    series.end_step(99.0)
    assert [taken[energy].total for taken in series.take(1)] == pytest.approx([10])


def test_imbalance_and_rates():
    series = series_of_steps(1.0)
    series.add([Sample(f"gpu_{i}", "gpu/utilization", 0.0, 90.0 - 60 * i) for i in range(2)])
    rows = make_rows(
        *series.take(1),
        Progress(0, 0.0),
        Progress(10, 2.0, num_samples=320, between_steps=0.5),
        {metric.name for metric in catalogue.METRICS},
    )
    assert rows["host"] == {
        "train/step_time": 200.0,
        "train/between_steps": 50.0,
        "train/samples_per_second": 160.0,
        "train/imbalance": 90 / 60,
    }


def test_training_that_goes_on_is_never_taken_for_ended():
    """Not even while its thread goes in and out of generators, as Keras's epochs do."""
    is_over = threading.Event()

    def read(depth):
        return read(depth - 1) if depth else None

    def batches():
        while not is_over.is_set():
            yield read(depth=20)

    calls, has_begun = [], threading.Event()

    def fit():
        calls.append(sys._getframe())
        has_begun.set()
        for _ in batches():
            pass

    training = threading.Thread(target=fit)
    training.start()
    has_begun.wait()
    looks, until = [], time.monotonic() + 2
    while time.monotonic() < until:
        looks.append(monitor.runs_in(training.ident, calls[0]))
    is_over.set()
    training.join()
    assert all(looks)
    assert not monitor.runs_in(training.ident, calls[0])


def test_rings_are_read_in_time_when_looks_are_slow(monkeypatch):
    """A driver that takes longer to answer than the interval is long."""
    monkeypatch.setattr(monitor, "CATCH_UP_SECONDS", 0.2)
    moments = []

    class Slow:
        devices = ()

        def sample(self, due):
            moments.extend([time.monotonic()] if due.kept else [])
            time.sleep(0.02)
            return []

        def close(self):
            pass

    tried = monitor.Monitor([Slow()], None, interval=0.001, metrics=())
    tried.start(Progress(0, 0.0))
    time.sleep(1.5)
    tried.stop()
    assert max(np.diff(moments)) < 0.4
    assert len(moments) < 20  # And not at each look.


def test_the_docs_are_made_from_the_table():
    docs = (HERE.parents[1] / "docs" / "metrics.md").read_text(encoding="utf-8")
    assert catalogue.markdown() in docs


# Bad input.


def test_bad_input(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="`log_dir` is a file"):
        km.GPUMetrics(tmp_path / "file")
    for interval in (0, -1, float("nan"), float("inf"), "1", True):
        with pytest.raises(ValueError, match="`interval` must be"):
            km.GPUMetrics(tmp_path, interval=interval)
    for freq in (0, "step", 1.5, True, np.array([1, 2])):
        with pytest.raises(ValueError, match="`update_freq` must be"):
            km.GPUMetrics(tmp_path, update_freq=freq)
    with pytest.raises(ValueError, match="`timeline_every` must be"):
        km.GPUMetrics(tmp_path, timeline_every=0)
    with pytest.raises(ValueError, match="Did you mean 'gpu/utilization'"):
        km.GPUMetrics(tmp_path, metrics=["gpu/utilisation"])
    with pytest.raises(ValueError, match="Did you mean 'gpu/temperature'"):
        km.GPUMetrics(tmp_path, metrics="temperature")
    for metrics in (None, 3, "defaults"):
        with pytest.raises(ValueError, match='"default", "all"'):
            km.GPUMetrics(tmp_path, metrics=metrics)
    km.GPUMetrics(tmp_path, interval=np.float32(0.5), update_freq=np.int64(2))
    chosen = catalogue.choose(["default", "gpu/memory_free"])
    assert len(chosen) == len(catalogue.choose("default")) + 1


def test_two_of_them(tmp_path):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
    model.compile("sgd", "mse")
    two = [km.GPUMetrics(tmp_path / "a"), km.GPUMetrics(tmp_path / "b")]
    with pytest.raises(ValueError, match="two GPUMetrics in one run"):
        model.fit(np.ones((4, 4)), np.ones((4, 2)), verbose=0, callbacks=two)
