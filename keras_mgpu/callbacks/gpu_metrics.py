"""The callback that logs what every GPU does while a model trains."""

from __future__ import annotations

import atexit
import weakref
from collections.abc import Iterable, Mapping
from typing import Any

import keras

from keras_mgpu.callbacks.run_progress import RunProgress
from keras_mgpu.internals.keras_optimizers import steps_of
from keras_mgpu.internals.keras_training import (
    EpochLength,
    TrainingCall,
    profiled_until,
    refuse_twice,
    training_call,
)
from keras_mgpu.monitoring import clock
from keras_mgpu.monitoring.metric_selection import choose
from keras_mgpu.monitoring.monitor import Monitor
from keras_mgpu.monitoring.profiling_schedule import ProfilingSchedule
from keras_mgpu.monitoring.run_files import RunFiles
from keras_mgpu.monitoring.sample_count import SampleCount
from keras_mgpu.monitoring.sources import open_sources
from keras_mgpu.monitoring.step_profiler import StepProfiler, can_profile
from keras_mgpu.monitoring.step_timer import StepTimer
from keras_mgpu.monitoring.step_totals import StepTotals
from keras_mgpu.monitoring.training_watch import watch
from keras_mgpu.monitoring.worker_times import WorkerTimes
from keras_mgpu.monitoring.write_schedule import WriteSchedule
from keras_mgpu.system.cluster import Workers, workers_of
from keras_mgpu.system.files import check_directory, make_directory

_running: weakref.WeakSet[GPUMetrics] = weakref.WeakSet()


class GPUMetrics(keras.callbacks.Callback):
    """Logs what every GPU and the host do, for TensorBoard.

    A background thread samples the driver; the training thread only reports which step it is at.
    Each GPU is a run with the same tags, so TensorBoard overlays all GPUs in one chart. Without a
    driver or without GPUs, or if a GPU fails, training continues, and everything else is logged.

    Example:

    ```python
    model.fit(x, y, callbacks=[keras_mgpu.GPUMetrics("logs")])
    ```

    Args:
        log_dir: Where to write the logs for TensorBoard.
        interval: Seconds between two samples. Defaults to 1.
        update_freq: `"batch"`, `"epoch"`, or a number of batches: the steps to write, at most one
            per interval. A step gets the mean, the maximum and the last of all samples since the
            step before. Defaults to `"batch"`.
        metrics: `"default"`, `"all"`, or a list of names; `docs/metrics.md` lists them.
        timeline_every: `"epoch"`, a number of batches, or `None` for never: how often to profile a
            step with TensorFlow's profiler. It logs the measured timeline of a `PipelineSplit`,
            the share of time in which GPUs were busy, and the time that `fit` waits for data.
            Defaults to `"epoch"`.
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
        self._metrics = frozenset(metric.name for metric in choose(metrics))
        self._writing = WriteSchedule(update_freq, interval)
        self._profiling = ProfilingSchedule(timeline_every)
        self._progress, self._length = RunProgress(), EpochLength()
        self._timer, self._samples = StepTimer(), SampleCount()
        self._monitor: Monitor | None = None
        self._profiler: StepProfiler | None = None
        self._workers = Workers()
        self._num_reserved = 0
        self._has_begun = False

    def on_train_begin(self, logs: Mapping[str, Any] | None = None) -> None:
        call = training_call()
        refuse_twice(self, call.callbacks)
        self._refuse_another(call.callbacks)
        self._end()
        make_directory(self._log_dir)
        self._length = EpochLength(self.model, call.epoch_iterator)
        self._workers = workers_of(getattr(self.model, "distribute_strategy", None))
        self._num_reserved = profiled_until(call.callbacks)
        self._monitor = self._make_monitor(call)
        self._profiler = StepProfiler(self._profiling, self._monitor, self.model)
        _running.add(self)

    def on_epoch_begin(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        self._samples.begin(self.model)
        self._progress.begin_epoch(epoch)
        self._profiling.begin_epoch(self._progress.step)

    def on_train_batch_begin(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        if not self._has_begun:
            self._begin()
        self._progress.begin_call(batch)
        if self._profiler is not None:
            self._profiler.begin_step(self._progress.step)
        self._timer.begin_step(clock.now())

    def on_train_batch_end(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        if not self._progress.is_in_call:  # A custom loop may report ends only.
            if not self._has_begun:
                self._begin(num_trained=1)
            self.on_train_batch_begin(batch)
        num_steps = self._progress.end_call(batch, self._length.num_batches)
        step = self._progress.step
        if self._profiler is not None:
            self._profiler.end_step(step)
        self._timer.end_step(clock.now())
        if self._monitor is not None:
            self._monitor.num_ended = step
        if not self._length.is_of_fit:  # A custom loop may reset Keras's count at every batch.
            self._samples.update(self.model)
        # After an epoch other callbacks may evaluate, and Keras counts those samples too.
        is_due = self._writing.is_due(step, num_steps, self._timer.end)
        if is_due or self._length.is_last(batch):
            self._report()

    def on_test_begin(self, logs: Mapping[str, Any] | None = None) -> None:
        self._cancel_profile()
        self._report()
        self._samples.pause()

    def on_epoch_end(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        self._cancel_profile()
        self._report()

    def on_train_end(self, logs: Mapping[str, Any] | None = None) -> None:
        self._report()
        self._end()

    def _begin(self, num_trained: int = 0) -> None:
        """Starts at the first batch: only then does a resumed run know its step."""
        if self._monitor is None:
            raise RuntimeError(
                "`on_train_begin` was not called. In a custom loop, call "
                "`callbacks.on_train_begin()` first."
            )
        self._has_begun = True
        now, num_steps = clock.now(), steps_of(getattr(self.model, "optimizer", None))
        self._progress.skip_to(num_steps - num_trained)
        self._samples.begin(self.model)
        self._timer.start(now)
        self._writing.start(self._progress.step, now)
        if can_profile(self.model, self._workers):
            self._profiling.start(self._progress.step, self._num_reserved)
        self._monitor.start(self._totals())

    def _report(self) -> None:
        """Has the monitor write this step, unless it was reported before."""
        if self._monitor is None or not self._writing.written(self._progress.step, clock.now()):
            return
        if self._length.is_of_fit:
            self._samples.update(self.model)
        self._monitor.report(self._totals())

    def _totals(self) -> StepTotals:
        timer = self._timer
        return StepTotals(self._progress.step, timer.end, self._samples.total, timer.between_steps)

    def _cancel_profile(self) -> None:
        if self._profiler is not None:
            self._profiler.cancel()

    def _training_failed(self) -> None:
        """Called by the monitor's thread."""
        self._cancel_profile()
        self._report()

    def _end(self) -> None:
        self._cancel_profile()
        self._profiling.stop()
        self._progress, self._length = RunProgress(self._progress.step), EpochLength()
        self._has_begun = False
        _running.discard(self)
        if self._monitor is not None:
            self._monitor.stop()
            self._monitor = self._profiler = None

    def _make_monitor(self, call: TrainingCall) -> Monitor:
        several = self._workers.count > 1
        return Monitor(
            sources=open_sources(self._metrics),
            files=RunFiles(self._log_dir, self._workers, self._metrics),
            interval=self._writing.interval,
            metrics=self._metrics,
            worker_times=WorkerTimes(self._log_dir, self._workers) if several else None,
            is_training=watch(call),
            on_failure=self._training_failed,
        )

    def _refuse_another(self, callbacks: Iterable[Any]) -> None:
        found = [each for each in callbacks if isinstance(each, GPUMetrics)]
        if any(each is not self for each in found):
            raise ValueError(
                "A run can have only one GPUMetrics callback, which logs all GPUs. To log more "
                'metrics with it, use `GPUMetrics(log_dir, metrics="all")`. '
                f"Received: {len(found)} GPUMetrics callbacks"
            )


@atexit.register
def _stop_all() -> None:
    """A custom loop may not have called `on_train_end`."""
    for callback in list(_running):
        callback.on_train_end()
