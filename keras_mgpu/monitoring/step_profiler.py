"""Profiles single steps of a run, and lets the monitor log them."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from keras_mgpu.monitoring.monitor import Monitor
from keras_mgpu.monitoring.profile_log import PipelineLanes, lanes_of, log_trace
from keras_mgpu.monitoring.profiling_schedule import ProfilingSchedule
from keras_mgpu.profiling.trace_recorder import TraceRecorder
from keras_mgpu.system.cluster import Workers


def can_profile(model: Any, workers: Workers) -> bool:
    """Whether single steps of this run can be profiled.

    Several steps in one execution cannot be distinguished. With several processes, TensorFlow's
    profiler has crashed them.
    """
    strategy = getattr(model, "distribute_strategy", None)
    has_servers = isinstance(strategy, tf.distribute.ParameterServerStrategy)
    is_single_step = getattr(model, "steps_per_execution", 1) == 1
    return workers.count == 1 and not has_servers and is_single_step


class StepProfiler:
    """Profiles the steps that a schedule asks for.

    Args:
        schedule: Which steps to profile.
        monitor: Reads and logs the traces, in its own thread.
        model: The model that is trained.
    """

    def __init__(self, schedule: ProfilingSchedule, monitor: Monitor, model: Any) -> None:
        self._schedule, self._monitor, self._model = schedule, monitor, model
        self._recorder: TraceRecorder | None = None

    def begin_step(self, step: int) -> None:
        """Begins the step that follows `step` steps."""
        self.cancel()
        if self._schedule.is_due(step) and self._monitor.is_running:
            self._recorder = TraceRecorder()

    def end_step(self, step: int) -> None:
        """Ends a step, after which `step` steps are done."""
        recorder, self._recorder = self._recorder, None
        if recorder is None:
            return
        seconds = recorder.stop()
        self._schedule.profiled(step)
        lanes = lanes_of(self._model)
        self._monitor.do_later(lambda: self._log(recorder, step, seconds, lanes))

    def cancel(self) -> None:
        """Drops the profile of a step that has failed, or that never came.

        Keras begins a batch before it knows whether the data has one.
        """
        recorder, self._recorder = self._recorder, None
        if recorder is not None:
            recorder.discard()

    def _log(
        self, recorder: TraceRecorder, step: int, seconds: float, lanes: PipelineLanes | None
    ) -> None:
        if not log_trace(self._monitor.files, recorder.read(), step, seconds, lanes):
            self._schedule.try_again()
