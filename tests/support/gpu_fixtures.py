"""Fixtures for tests of GPU metrics: a clock that a test drives, and GPUs whose curves are known."""

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
