"""The callback that logs what every GPU does while a model trains."""

from __future__ import annotations

import atexit
import logging
import sys
import threading
import time
import weakref
from collections.abc import Iterable, Mapping
from typing import Any

import keras
import tensorflow as tf

from keras_mgpu import files
from keras_mgpu.directory import check_directory, make_directory
from keras_mgpu.keras_internals import num_samples_counted, training_call
from keras_mgpu.monitoring import catalogue, nvml_source
from keras_mgpu.monitoring.allocator_source import AllocatorSource
from keras_mgpu.monitoring.event_files import EventFile
from keras_mgpu.monitoring.host_source import HostSource
from keras_mgpu.monitoring.layout import layout
from keras_mgpu.monitoring.measured_timeline import Profile
from keras_mgpu.monitoring.monitor import Monitor, runs_in
from keras_mgpu.monitoring.source import Source
from keras_mgpu.monitoring.steps import Progress
from keras_mgpu.monitoring.timeline_log import log_profile
from keras_mgpu.pci_buses import buses_of_gpus
from keras_mgpu.unsplit import is_split
from keras_mgpu.workers import workers_of

logger = logging.getLogger("keras_mgpu")
_running: weakref.WeakSet[Monitor] = weakref.WeakSet()


class GPUMetrics(keras.callbacks.Callback):
    """Logs what every GPU and the host do, for TensorBoard.

    A thread of its own samples the driver; the training thread only says which step it is at.
    Each GPU is a run of its own with the same tags, so that TensorBoard overlays them in one
    chart. Without a driver, without GPUs, or with a GPU that fails, training goes on, and whatever
    there is is logged.

    Example:

    ```python
    model.fit(x, y, callbacks=[keras_mgpu.GPUMetrics("logs")])
    ```

    Args:
        log_dir: Where TensorBoard finds it.
        interval: Seconds between two looks. Defaults to 1.
        update_freq: `"batch"`, `"epoch"`, or a number of batches: the steps that numbers are
            written for, at most one in each interval. A step gets the mean, the largest and the
            last of all samples since the one before. Defaults to `"batch"`.
        metrics: `"default"`, `"all"`, or a list of names; `docs/metrics.md` lists them.
        timeline_every: `"epoch"`, a number of batches, or `None` for never: how often a step is
            traced with TensorFlow's profiler. Of a `PipelineSplit` it logs the measured timeline,
            of GPUs the share of time they were busy. Defaults to `"epoch"`.
    """

    def __init__(
        self,
        log_dir: Any,
        interval: float = 1.0,
        update_freq: str | int = "batch",
        metrics: str | Iterable[str] = "default",
        timeline_every: str | int | None = "epoch",
    ) -> None:
        super().__init__()
        self._log_dir = check_directory(log_dir, "log_dir")
        self._interval = _check_interval(interval)
        self._update_freq = _check_update_freq(update_freq)
        self._metrics = frozenset(metric.name for metric in catalogue.choose(metrics))
        self._timeline_every = _check_timeline_every(timeline_every)
        self._monitor: Monitor | None = None
        self._profile: Profile | None = None
        self._step = 0
        self._num_samples = 0

    def on_train_begin(self, logs: Mapping[str, Any] | None = None) -> None:
        call = training_call()
        if any(isinstance(each, GPUMetrics) and each is not self for each in call.callbacks):
            raise ValueError(
                "There are two GPUMetrics in one run. One logs all GPUs; give it all metrics: "
                '`GPUMetrics(log_dir, metrics="all")`.'
            )
        self._end()
        make_directory(self._log_dir)
        workers = workers_of(self.model.distribute_strategy)
        self._prefix = f"worker_{workers.index}_" if workers.count > 1 else ""
        self._begin_of_step = self._seconds_in_steps = 0.0
        self._samples_a_step = 0
        self._is_counted = False
        self._before_epoch = self._num_samples
        thread, code = threading.get_ident(), call.code
        self._monitor = Monitor(
            self._sources(),
            self._open_file,
            self._interval,
            self._metrics,
            lambda: runs_in(thread, code),
        )
        _running.add(self._monitor)
        self._monitor.start(self._progress())
        self._has_traced = False
        self._next_profile = self._step if self._can_profile() else sys.maxsize

    def on_epoch_begin(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        if self._timeline_every == "epoch" and self._can_profile():
            self._next_profile = self._step

    def on_train_batch_begin(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        self._first_of_call = batch
        if self._has_traced and self._step >= self._next_profile:
            self._profile = Profile()
        self._begin_of_step = time.perf_counter()

    def on_train_batch_end(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        self._seconds_in_steps += time.perf_counter() - self._begin_of_step
        num_steps = batch - self._first_of_call + 1
        self._step += num_steps
        self._has_traced = True
        if self._profile is not None:
            self._end_profile(self._profile)
        if not self._samples_a_step:
            self._samples_a_step = sum(num_samples_counted(self.model)) // num_steps
        self._num_samples += self._samples_a_step * num_steps
        if self._update_freq is not None and self._step % self._update_freq < num_steps:
            self._tell()

    def on_test_begin(self, logs: Mapping[str, Any] | None = None) -> None:
        self._count_samples()  # Validation resets what Keras has counted.

    def on_epoch_end(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        self._count_samples()
        self._is_counted = False
        self._before_epoch = self._num_samples
        self._tell()

    def on_train_end(self, logs: Mapping[str, Any] | None = None) -> None:
        self._tell()
        self._end()

    def _can_profile(self) -> bool:
        """Of CPUs only a pipeline can be told, and of several steps at once nothing."""
        is_seen = is_split(self.model) or bool(tf.config.list_logical_devices("GPU"))
        is_alone = getattr(self.model, "steps_per_execution", 1) == 1
        return self._timeline_every is not None and is_seen and is_alone

    def _end_profile(self, profile: Profile) -> None:
        """The first step of all is traced by TensorFlow, and never profiled."""
        self._profile = None
        seconds, step = profile.stop(), self._step
        every = self._timeline_every
        self._next_profile = step + every if isinstance(every, int) else sys.maxsize
        schedule = self.model.schedule if is_split(self.model) else None
        runs = _lane_names(self.model, schedule)
        monitor = self._monitor
        if monitor is not None:
            monitor.do_later(lambda: log_profile(monitor, profile, seconds, step, schedule, runs))

    def _count_samples(self) -> None:
        """Batches are taken to be as large as the first, until Keras has counted an epoch."""
        if self._samples_a_step and not self._is_counted:
            self._is_counted = True
            self._num_samples = self._before_epoch + sum(num_samples_counted(self.model))

    def _tell(self) -> None:
        if self._monitor is not None:
            self._monitor.progress = self._progress()

    def _progress(self) -> Progress:
        return Progress(self._step, time.time(), self._num_samples, self._seconds_in_steps)

    def _end(self) -> None:
        if self._profile is not None:  # A step failed while it was traced.
            self._profile.stop()
            self._profile = None
        if self._monitor is not None:
            self._monitor.stop()
            self._monitor = None

    def _sources(self) -> list[Source]:
        buses = buses_of_gpus()
        sources: list[Source] = []
        if any(name.startswith("gpu/") for name in self._metrics):
            gpus = nvml_source.open_source(list(buses.values()), self._metrics)
            sources += [] if gpus is None else [gpus]
        gpu_names = [each.name for each in tf.config.list_logical_devices("GPU")]
        if gpu_names and any(name.startswith("allocator/") for name in self._metrics):
            names = {name.partition("device:")[2]: f"gpu_{i}" for i, name in enumerate(gpu_names)}
            sources.append(AllocatorSource(names, self._metrics))
        if any(name.startswith("host/") for name in self._metrics):
            sources.append(HostSource(self._metrics))
        return sources

    def _open_file(self, device: str) -> EventFile:
        file = EventFile(files.join(self._log_dir, f"{self._prefix}{device}"))
        if device == "host":
            file.summary(layout(self._metrics), self._step)
        return file


def _lane_names(model: Any, schedule: Any) -> list[str]:
    """`gpu_0` for each lane of a pipeline on `/GPU:0`."""
    if schedule is None:
        return []
    devices = [model.stages[ops[0].stage].device for ops in schedule.lanes]
    return [device.strip("/").lower().replace(":", "_") for device in devices]


@atexit.register
def _stop_all() -> None:
    """A custom loop may have forgotten `on_train_end`."""
    for monitor in list(_running):
        monitor.stop()


def _check_interval(interval: Any) -> float:
    is_number = isinstance(interval, (int, float)) and not isinstance(interval, bool)
    if not is_number or not 0 < interval < float("inf"):
        raise ValueError(
            f"`interval` must be a number of seconds above 0. Received: interval={interval!r}"
        )
    return float(interval)


def _check_update_freq(update_freq: Any) -> int | None:
    """The number of batches, or `None` for epochs."""
    if update_freq in ("batch", "epoch"):
        return 1 if update_freq == "batch" else None
    if isinstance(update_freq, bool) or not isinstance(update_freq, int) or update_freq < 1:
        raise ValueError(
            '`update_freq` must be "batch", "epoch" or a whole number from 1 on. '
            f"Received: update_freq={update_freq!r}"
        )
    return update_freq


def _check_timeline_every(every: Any) -> str | int | None:
    if every in ("epoch", None):
        return every
    if isinstance(every, bool) or not isinstance(every, int) or every < 1:
        raise ValueError(
            '`timeline_every` must be "epoch", a whole number from 1 on, or None. '
            f"Received: timeline_every={every!r}"
        )
    return every
