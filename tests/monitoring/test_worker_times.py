import pytest

from keras_mgpu.monitoring.step_totals import StepTotals
from keras_mgpu.monitoring.worker_times import WorkerTimes
from keras_mgpu.system.cluster import Workers

BEFORE = StepTotals(0, 0.0)


def after(num_steps, between_steps):
    return StepTotals(num_steps, 10.0, between_steps=between_steps)


@pytest.fixture
def workers(tmp_path):
    names = ("worker:0", "worker:1")
    return [WorkerTimes(str(tmp_path), Workers(index, names)) for index in range(2)]


def test_the_first_worker_compares_once_all_have_written(workers):
    first, second = workers
    assert first.compare(BEFORE, after(10, 1.0)) == {}
    assert second.compare(BEFORE, after(10, 3.0)) == {}
    assert first.compare(BEFORE, after(10, 1.0)) == {"train/slowest_worker": 1.0}
    assert first.compare(BEFORE, after(10, 4.0)) == {"train/slowest_worker": 0.0}


def test_times_are_per_step(workers):
    first, second = workers
    second.compare(BEFORE, after(100, 3.0))
    assert first.compare(BEFORE, after(10, 1.0)) == {"train/slowest_worker": 0.0}


def test_an_earlier_run_is_forgotten(workers, tmp_path):
    _, second = workers
    second.compare(BEFORE, after(10, 3.0))
    WorkerTimes(str(tmp_path), Workers(1, ("worker:0", "worker:1")))
    assert workers[0].compare(BEFORE, after(10, 1.0)) == {}
