import pytest
import tensorflow as tf
from small_fit import small_model

from keras_mgpu.monitoring import step_profiler
from keras_mgpu.monitoring.profiling_schedule import ProfilingSchedule
from keras_mgpu.monitoring.step_profiler import StepProfiler, can_profile
from keras_mgpu.system.cluster import Workers


class Recorder:
    """Stands in for the profiler."""

    made = ()

    def __init__(self):
        self.is_discarded = False
        Recorder.made = (*Recorder.made, self)

    def stop(self):
        return 0.5

    def read(self):
        return "trace"

    def discard(self):
        self.is_discarded = True


class Monitor:
    """Does work at once."""

    is_running = True
    files = "files"

    def do_later(self, work):
        work()


@pytest.fixture
def logged(monkeypatch):
    """The arguments of each log, and whether the next one is complete."""
    found = []

    def log_trace(*arguments):
        found.append(arguments)
        return len(found) != 1

    Recorder.made = ()
    monkeypatch.setattr(step_profiler, "TraceRecorder", Recorder)
    monkeypatch.setattr(step_profiler, "log_trace", log_trace)
    return found


def test_steps_are_profiled_when_due_and_tried_again(logged):
    schedule = ProfilingSchedule("epoch")
    schedule.start(0)
    profiler = StepProfiler(schedule, Monitor(), small_model())
    for step in range(6):
        profiler.begin_step(step)
        profiler.end_step(step + 1)
    # The first log said that it was not complete.
    assert logged == [("files", "trace", step, 0.5, None) for step in (2, 3)]


def test_a_step_that_never_comes(logged):
    schedule = ProfilingSchedule(1)
    schedule.start(0)
    profiler = StepProfiler(schedule, Monitor(), small_model())
    profiler.begin_step(1)
    profiler.cancel()
    profiler.end_step(2)
    assert [each.is_discarded for each in Recorder.made] == [True]
    assert logged == []


def test_which_runs_can_be_profiled():
    assert can_profile(small_model(), Workers())
    assert not can_profile(small_model(steps_per_execution=2), Workers())
    assert not can_profile(small_model(), Workers(0, ("worker:0", "worker:1")))
    with tf.distribute.OneDeviceStrategy("/CPU:0").scope():
        assert can_profile(small_model(), Workers())
