"""The callback: what it refuses, what it logs without a driver, and what it survives."""

import os
import shutil

import keras
import numpy as np
import pynvml
import pytest
from event_scalars import scalars, steps
from small_fit import Takes, fit, ones, small_model
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import keras_mgpu as km
from keras_mgpu.monitoring import monitor


def messages(caplog, text):
    return [each.getMessage() for each in caplog.records if text in each.getMessage()]


def test_without_a_driver(tmp_path, caplog, monkeypatch):
    def is_not_found():
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    # A stand-in that another test has loaded into this process would be found.
    monkeypatch.setattr(pynvml, "nvmlInit", is_not_found)
    caplog.set_level("INFO")
    fit(km.GPUMetrics(tmp_path, interval=0.05))
    assert len(messages(caplog, "No GPU metrics")) == 1
    assert set(scalars(tmp_path, "host")) >= {"train/step_time", "host/memory"}


def test_charts_are_grouped(tmp_path):
    fit(km.GPUMetrics(tmp_path, interval=0.05))
    events = EventAccumulator(str(tmp_path / "host")).Reload()
    content = events.Tensors("custom_scalars__config__")[0].tensor_proto.string_val[0]
    assert b"Power and heat" in content
    assert b"train/samples_per_second" in content


def test_a_file_that_is_deleted(tmp_path, fake_clock, caplog):
    class Deletes(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            if batch == 8:
                shutil.rmtree(tmp_path / "host")

    seconds = monitor.FLUSH_SECONDS / 4
    fit(km.GPUMetrics(tmp_path), Deletes(), Takes(fake_clock, seconds))
    assert len(messages(caplog, "was deleted")) == 1


def test_one_file_that_cannot_be_written(tmp_path, devices, caplog):
    (tmp_path / "pipeline").write_text("in the way")
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2), keras.layers.Dense(2)])
    split = km.PipelineSplit(model, devices[:2], micro_batches=2)
    split.compile("sgd", "mse")
    fit(km.GPUMetrics(tmp_path, interval=0.02), model=split)
    assert len(messages(caplog, "Stopped logging pipeline")) == 1
    assert steps(tmp_path, "host", "train/step_time")[-1] == 16


def test_several_fits_in_the_same_second(tmp_path):
    callback, model = km.GPUMetrics(tmp_path, interval=0.02), small_model()
    for _ in range(4):
        fit(callback, num_samples=8, model=model)
    assert set(steps(tmp_path, "host", "train/step_time")) >= {2, 4, 6, 8}


def test_evaluate_with_it(tmp_path):
    callback = km.GPUMetrics(tmp_path)
    small_model().evaluate(*ones(4), verbose=0, callbacks=[callback])
    with pytest.raises(RuntimeError, match=r"call `callbacks.on_train_begin\(\)` first"):
        callback.on_train_batch_begin(0)


def test_a_log_dir_that_cannot_be_written(tmp_path):
    directory = tmp_path / "read-only"
    directory.mkdir()
    if os.geteuid() == 0:  # Root can write everywhere but here.
        directory = "/proc/sys/logs"
    else:
        directory.chmod(0o500)
    with pytest.raises(PermissionError, match="Cannot write to"):
        fit(km.GPUMetrics(directory))


def test_bad_arguments(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="`log_dir` is a file"):
        km.GPUMetrics(tmp_path / "file")
    with pytest.raises(ValueError, match="`interval` must be"):
        km.GPUMetrics(tmp_path, interval=0)
    with pytest.raises(ValueError, match="`update_freq` must be"):
        km.GPUMetrics(tmp_path, update_freq="step")
    with pytest.raises(ValueError, match="`timeline_every` must be"):
        km.GPUMetrics(tmp_path, timeline_every=0)
    with pytest.raises(ValueError, match="Did you mean 'gpu/utilization'"):
        km.GPUMetrics(tmp_path, metrics=["gpu/utilisation"])
    km.GPUMetrics(tmp_path, interval=np.float32(0.5), update_freq=np.int64(2))


def test_two_of_them(tmp_path):
    with pytest.raises(ValueError, match="only one GPUMetrics callback"):
        fit(km.GPUMetrics(tmp_path / "a"), km.GPUMetrics(tmp_path / "b"))
