"""Fixtures for tests of GPU metrics: a clock that the test moves, and GPUs with known curves.

`tests/conftest.py` imports them for all tests.
"""

import cluster
import pytest
from fake_clock import FakeClock
from stand_in_driver import StandInDriver


@pytest.fixture(scope="session")
def driver_folder(tmp_path_factory):
    return cluster.compile_driver("driver.c", tmp_path_factory.mktemp("driver"))


@pytest.fixture
def driver(driver_folder):
    driver = StandInDriver(driver_folder)
    yield driver
    driver.set_time(0.0)
    driver.set_clock(0.0)


@pytest.fixture
def fake_clock(driver, monkeypatch):
    """The time of everything in `keras_mgpu.monitoring`, and of the driver."""
    return FakeClock(driver.set_time).install(monkeypatch)


class MissingOps:
    """How many traces from now on lack the end of an op, as they do once in a while."""

    num_traces = 0


@pytest.fixture
def missing_ops(monkeypatch):
    from keras_mgpu.profiling import measured_timeline

    missing, all_calls = MissingOps(), measured_timeline.calls_in

    def calls_in(trace):
        missing.num_traces -= 1
        for call in all_calls(trace):
            is_seen = call.is_begin or "stage_1/backward/micro_batch_2" not in call.name
            if is_seen or missing.num_traces < 0:
                yield call

    monkeypatch.setattr(measured_timeline, "calls_in", calls_in)
    return missing


@pytest.fixture
def nvml(fake_clock, driver, monkeypatch):
    """The driver's library, initialized, with three GPUs of the stand-in."""
    import pynvml

    driver.install(monkeypatch, num_gpus=3)
    pynvml.nvmlInit()
    yield pynvml
    pynvml.nvmlShutdown()
