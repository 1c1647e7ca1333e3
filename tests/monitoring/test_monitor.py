"""The thread that polls and writes, with a source and a clock that only the test moves."""

import pytest

from keras_mgpu.monitoring.monitor import Monitor
from keras_mgpu.monitoring.series import Sample
from keras_mgpu.monitoring.step_totals import StepTotals

POWER = "gpu/power"


class Recorder:
    """Stands in for the event files."""

    def __init__(self):
        self.values, self.num_flushes, self.is_closed = {}, 0, False

    def write(self, run, values, step, time):
        assert step not in self.values.setdefault(run, {}), "written twice"
        self.values[run][step] = values

    def flush(self):
        self.num_flushes += 1

    def close(self):
        self.is_closed = True


class Seconds:
    """A source whose samples are the seconds since the start."""

    def __init__(self, clock):
        self.clock, self.is_closed = clock, False

    def sample(self, due):
        return [Sample("gpu_0", POWER, self.clock.now(), self.clock.seconds)]

    def close(self):
        self.is_closed = True


class Fails:
    def sample(self, due):
        raise OSError("broken")

    def close(self):
        raise AssertionError("it was given up before")


@pytest.fixture
def start(fake_clock):
    """Starts a monitor of the metric; returns it."""
    started = []

    def start(*sources, interval=0.25, **options):
        monitor = Monitor(sources, Recorder(), interval, [POWER], **options)
        monitor.start(StepTotals(0, fake_clock.now()))
        started.append(monitor)
        return monitor

    yield start
    for monitor in started:
        monitor.stop()


def train(monitor, clock, num_steps, seconds=1.0, first=1):
    for step in range(first, first + num_steps):
        clock.advance(seconds)
        monitor.num_ended = step
        monitor.report(StepTotals(step, clock.now()))


def test_each_step_gets_the_samples_that_were_taken_in_it(start, fake_clock):
    monitor = start(Seconds(fake_clock))
    train(monitor, fake_clock, 4)
    monitor.stop()
    found = {
        step: values["gpu/power_last"] for step, values in monitor.files.values["gpu_0"].items()
    }
    assert found == {1: 1.0, 2: 2.0, 3: 3.0, 4: 4.0}
    assert monitor.files.is_closed
    assert not monitor.is_running


def test_a_step_is_written_when_the_next_has_ended(start, fake_clock):
    monitor = start(Seconds(fake_clock))
    train(monitor, fake_clock, 3)
    fake_clock.advance(5.0)  # A long fourth step, or a validation.
    assert list(monitor.files.values["gpu_0"]) == [1, 2]
    monitor.stop()
    assert monitor.files.values["gpu_0"][3]["gpu/power_max"] == 8.0  # Everything after it.


def test_a_source_that_fails_is_given_up(start, fake_clock, caplog):
    monitor = start(Fails(), Seconds(fake_clock))
    train(monitor, fake_clock, 2)
    monitor.stop()
    (message,) = [record.getMessage() for record in caplog.records]
    assert message == "Fails no longer reports anything: broken"
    assert list(monitor.files.values["gpu_0"]) == [1, 2]


def test_work_that_fails_does_not_stop_it(start, fake_clock, caplog):
    monitor, done = start(Seconds(fake_clock)), []
    monitor.do_later(lambda: 1 / 0)
    monitor.do_later(lambda: done.append(True))
    train(monitor, fake_clock, 2)
    assert done == [True]
    assert "A profiled step could not be logged" in caplog.text


def test_training_that_ends_without_a_word(start, fake_clock):
    state = {"is_training": True, "num_failures": 0}

    def fail():
        state["num_failures"] += 1

    source = Seconds(fake_clock)
    monitor = start(source, is_training=lambda: state["is_training"], on_failure=fail)
    train(monitor, fake_clock, 2)
    state["is_training"] = False
    fake_clock.advance(1.0)
    assert not monitor.is_running
    assert state["num_failures"] == 1
    assert list(monitor.files.values["gpu_0"]) == [1, 2]
    assert source.is_closed


def test_one_that_was_never_started_is_closed(fake_clock):
    monitor = Monitor([Seconds(fake_clock)], Recorder(), 1.0, [POWER])
    monitor.stop()
    assert monitor.files.is_closed
    assert monitor.files.values == {}


def test_files_are_flushed_every_few_seconds(start, fake_clock):
    monitor = start(Seconds(fake_clock))
    train(monitor, fake_clock, 12)
    assert monitor.files.num_flushes == 2
