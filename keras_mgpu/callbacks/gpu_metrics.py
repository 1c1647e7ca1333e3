"""The callback that logs what every GPU does while a model trains."""

from __future__ import annotations

import atexit
import numbers
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import keras
import tensorflow as tf

from keras_mgpu.internals.keras_optimizers import steps_of
from keras_mgpu.internals.keras_training import (
    EpochLength,
    TrainingCall,
    profiled_until,
    refuse_twice,
    training_call,
)
from keras_mgpu.model.split_model import is_split
from keras_mgpu.monitoring import catalogue, clock, nvml_source
from keras_mgpu.monitoring.allocator_source import AllocatorSource
from keras_mgpu.monitoring.event_files import EventFile
from keras_mgpu.monitoring.host_source import HostSource
from keras_mgpu.monitoring.layout import layout
from keras_mgpu.monitoring.monitor import Monitor, runs_in
from keras_mgpu.monitoring.sample_count import SampleCount
from keras_mgpu.monitoring.source import Source
from keras_mgpu.monitoring.steps import Progress
from keras_mgpu.monitoring.timeline_log import log_profile
from keras_mgpu.monitoring.worker_times import WorkerTimes
from keras_mgpu.profiling.profile import Profile
from keras_mgpu.system import files
from keras_mgpu.system.cluster import Workers, workers_of
from keras_mgpu.system.devices import buses_of_gpus
from keras_mgpu.system.files import check_directory, make_directory

_running: weakref.WeakSet[GPUMetrics] = weakref.WeakSet()


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
            of GPUs the share of time they were busy, of `fit` the time it waits for data. Defaults
            to `"epoch"`.
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
        self._workers = Workers()
        self._samples = SampleCount()
        self._length: EpochLength | None = None
        self._step = self._step_told = 0
        self._begin_of_step = self._end_of_step = self._between_steps = self._last_told = 0.0
        self._first_of_call: int | None = None  # Until it ends.
        self._has_begun = False
        self._profiled_until = 0
        self._first_profile = self._next_profile = sys.maxsize

    def on_train_begin(self, logs: Mapping[str, Any] | None = None) -> None:
        call = training_call()
        refuse_twice(self, call.callbacks)
        if any(isinstance(each, GPUMetrics) and each is not self for each in call.callbacks):
            raise ValueError(
                "There are two GPUMetrics in one run. One logs all GPUs; give it all metrics: "
                '`GPUMetrics(log_dir, metrics="all")`.'
            )
        self._end()
        make_directory(self._log_dir)
        iterator = call.epoch_iterator
        self._length = None if iterator is None else EpochLength(self.model, iterator)
        self._workers = workers_of(getattr(self.model, "distribute_strategy", None))
        self._monitor = Monitor(
            self._sources(),
            self._open_file,
            self._interval,
            self._metrics,
            WorkerTimes(self._log_dir, self._workers) if self._workers.count > 1 else None,
            _watch(call),
            self._training_failed,
        )
        _running.add(self)
        self._profiled_until = profiled_until(call.callbacks)

    def on_epoch_begin(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        self._samples.begin(self.model)
        if self._timeline_every == "epoch" and self._has_begun and self._can_profile():
            self._next_profile = max(self._step, self._first_profile)

    def on_train_batch_begin(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        if not self._has_begun:
            self._begin()
        self._first_of_call = batch
        self._stop_profile()
        if self._step >= self._next_profile and self._monitor and self._monitor.is_running:
            self._profile = Profile()
        self._begin_of_step = time.perf_counter()

    def on_train_batch_end(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        if self._first_of_call is None:  # A custom loop may tell of ends only.
            if not self._has_begun:
                self._begin(num_trained=1)
            self.on_train_batch_begin(batch)
        first = self._first_of_call or 0
        num_steps = (
            batch - first + 1 if self._length is None else self._length.num_trained(first, batch)
        )
        self._first_of_call = None
        self._step += num_steps
        if self._profile is not None:
            self._end_profile(self._profile)
        self._between_steps += self._begin_of_step - self._end_of_step
        self._end_of_step = time.perf_counter()
        if self._monitor is not None:
            self._monitor.num_ended = self._step
        if self._length is None:  # Somebody may have Keras count anew for every batch.
            self._samples.update(self.model)
        is_due = self._update_freq is not None and self._step % self._update_freq < num_steps
        # Behind an epoch other callbacks may evaluate, and Keras counts those samples likewise.
        is_last = self._length is not None and self._length.is_last(batch)
        if (is_due and self._end_of_step - self._last_told >= self._interval) or is_last:
            self._tell()

    def on_test_begin(self, logs: Mapping[str, Any] | None = None) -> None:
        self._stop_profile()
        self._tell()
        self._samples.pause()

    def on_epoch_end(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        self._stop_profile()
        self._tell()

    def on_train_end(self, logs: Mapping[str, Any] | None = None) -> None:
        self._tell()
        self._end()

    def _begin(self, num_trained: int = 0) -> None:
        """At the first batch a resumed run knows which step it is at."""
        if self._monitor is None:
            raise RuntimeError(
                "GPUMetrics was not told that training begins. In a loop of your own, call "
                "`callbacks.on_train_begin()` first."
            )
        self._has_begun = True
        num_steps = steps_of(getattr(self.model, "optimizer", None))
        self._step = max(self._step, num_steps - num_trained)
        self._samples.begin(self.model)
        # TensorFlow traces the first step, and what it takes then is not what a step takes.
        self._first_profile = self._step + self._profiled_until + 1
        self._next_profile = self._first_profile if self._can_profile() else sys.maxsize
        self._begin_of_step = self._end_of_step = self._last_told = time.perf_counter()
        self._step_told = self._step
        self._monitor.start(self._progress())

    def _can_profile(self) -> bool:
        """Several steps at once cannot be told apart; profiling several processes ended them."""
        strategy = getattr(self.model, "distribute_strategy", None)
        has_servers = isinstance(strategy, tf.distribute.ParameterServerStrategy)
        is_alone = self._workers.count == 1 and not has_servers
        is_single = getattr(self.model, "steps_per_execution", 1) == 1
        return self._timeline_every is not None and is_alone and is_single

    def _end_profile(self, profile: Profile) -> None:
        self._profile = None
        seconds, step = profile.stop(), self._step
        every = self._timeline_every
        self._next_profile = step - 1 + every if isinstance(every, int) else sys.maxsize
        schedule = self.model.schedule if is_split(self.model) else None
        runs = _lane_names(self.model, schedule)
        monitor = self._monitor
        if monitor is None:
            return

        def log() -> None:
            if not log_profile(monitor, profile, seconds, step, schedule, runs):
                self._next_profile = self._first_profile

        monitor.do_later(log)

    def _tell(self) -> None:
        """Says that this step is to be written, if that was not said before."""
        if self._monitor is None or self._step == self._step_told:
            return
        if self._length is not None:
            self._samples.update(self.model)
        self._step_told, self._last_told = self._step, time.perf_counter()
        self._monitor.tell(self._progress())

    def _progress(self) -> Progress:
        ended = clock.now() - (time.perf_counter() - self._end_of_step)
        return Progress(self._step, ended, self._samples.total, self._between_steps)

    def _training_failed(self) -> None:
        """Called by the thread that logs."""
        self._stop_profile()
        self._tell()

    def _stop_profile(self) -> None:
        """For a step that failed, or never came: Keras begins a batch before it asks for it."""
        profile, self._profile = self._profile, None
        if profile is not None:
            profile.stop()
            profile.read()

    def _end(self) -> None:
        self._stop_profile()
        self._first_of_call, self._has_begun, self._length = None, False, None
        _running.discard(self)
        if self._monitor is not None:
            self._monitor.stop()
            self._monitor = None

    def _sources(self) -> list[Source]:
        buses = buses_of_gpus()
        sources: list[Source] = []
        sampled = catalogue.with_needed(self._metrics)
        if any(name.startswith("gpu/") for name in sampled):
            gpus = nvml_source.open_source(list(buses.values()), sampled)
            sources += [] if gpus is None else [gpus]
        gpu_names = [each.name for each in tf.config.list_logical_devices("GPU")]
        if gpu_names and any(name.startswith("allocator/") for name in self._metrics):
            names = {name.partition("device:")[2]: f"gpu_{i}" for i, name in enumerate(gpu_names)}
            sources.append(AllocatorSource(names, self._metrics))
        if any(name.startswith("host/") for name in self._metrics):
            sources.append(HostSource(self._metrics))
        return sources

    def _open_file(self, device: str) -> EventFile:
        name = self._workers.names[self._workers.index].replace(":", "_")
        prefix = f"{name}_" if self._workers.count > 1 else ""
        file = EventFile(files.join(self._log_dir, f"{prefix}{device}"))
        if device == "host":
            file.summary(layout(self._metrics), self._step)
        return file


def _watch(call: TrainingCall) -> Callable[[], bool]:
    """Tells whether `fit` still runs. A loop of one's own may call from anywhere, and says so."""
    if call.epoch_iterator is None:
        return lambda: True
    thread, frame = threading.get_ident(), call.frame
    return lambda: runs_in(thread, frame)


def _lane_names(model: Any, schedule: Any) -> list[str]:
    """`gpu_0` for each lane of a pipeline on `/GPU:0`."""
    if schedule is None:
        return []
    devices = [model.stages[ops[0].stage].device for ops in schedule.lanes]
    return [device.strip("/").lower().replace(":", "_") for device in devices]


@atexit.register
def _stop_all() -> None:
    """A custom loop may have forgotten `on_train_end`."""
    for callback in list(_running):
        callback.on_train_end()


def _check_interval(interval: Any) -> float:
    is_number = isinstance(interval, numbers.Real) and not isinstance(interval, bool)
    if not is_number or not 0 < interval < float("inf"):
        raise ValueError(
            f"`interval` must be a number of seconds above 0. Received: interval={interval!r}"
        )
    return float(interval)


def _check_update_freq(update_freq: Any) -> int | None:
    """The number of batches, or `None` for epochs."""
    if isinstance(update_freq, str) and update_freq in ("batch", "epoch"):
        return 1 if update_freq == "batch" else None
    if not _is_count(update_freq):
        raise ValueError(
            '`update_freq` must be "batch", "epoch" or a whole number from 1 on. '
            f"Received: update_freq={update_freq!r}"
        )
    return int(update_freq)


def _check_timeline_every(every: Any) -> str | int | None:
    if every is None or (isinstance(every, str) and every == "epoch"):
        return every
    if not _is_count(every):
        raise ValueError(
            '`timeline_every` must be "epoch", a whole number from 1 on, or None. '
            f"Received: timeline_every={every!r}"
        )
    return int(every)


def _is_count(value: Any) -> bool:
    is_whole = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    return is_whole and value >= 1
