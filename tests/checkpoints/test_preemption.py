"""SIGTERM: save, then stop."""

import signal

import pytest

from keras_mgpu.checkpoints.preemption import Preempted, StopRequest
from keras_mgpu.system.cluster import Workers


@pytest.fixture
def received():
    """Signals that reach the handler that was set before."""
    found = []
    previous = signal.signal(signal.SIGTERM, lambda number, frame: found.append(number))
    yield found
    signal.signal(signal.SIGTERM, previous)


def test_a_signal_makes_a_stop_due(tmp_path, received):
    request = StopRequest(str(tmp_path), Workers())
    request.listen(None)
    assert not request.is_due(1)
    signal.raise_signal(signal.SIGTERM)
    assert request.is_due(1)
    request.answered()
    request.stop_listening()
    assert received == []


def test_a_second_signal_reaches_the_previous_handler(tmp_path, received):
    request = StopRequest(str(tmp_path), Workers())
    request.listen(None)
    signal.raise_signal(signal.SIGTERM)
    signal.raise_signal(signal.SIGTERM)
    assert received == [signal.SIGTERM]


def test_a_signal_outside_of_training_reaches_the_previous_handler(tmp_path, received):
    request = StopRequest(str(tmp_path), Workers())
    request.listen(test_a_signal_makes_a_stop_due.__code__)
    signal.raise_signal(signal.SIGTERM)
    assert received == [signal.SIGTERM]


def test_all_workers_stop_after_the_same_step(tmp_path, received):
    names = ("worker:0", "worker:1")
    requests = [StopRequest(str(tmp_path), Workers(index, names)) for index in range(2)]
    requests[1].listen(None)
    signal.raise_signal(signal.SIGTERM)
    assert not requests[1].is_due(4)  # It announces the next step.
    assert [each.is_due(5) for each in requests] == [True, True]
    requests[1].answered()
    requests[1].stop_listening()
    requests[0].listen(None)  # A new run forgets the request of the previous one.
    assert not requests[1].is_due(5)
    requests[0].stop_listening()


def test_the_exit_code():
    stop = Preempted("saved")
    assert (stop.code, str(stop)) == (143, "saved")
