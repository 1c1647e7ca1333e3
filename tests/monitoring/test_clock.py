import threading
import time

from keras_mgpu.monitoring import clock


def test_it_does_not_follow_a_clock_that_is_set(monkeypatch):
    before = clock.now()
    system = time.time
    monkeypatch.setattr(time, "time", lambda: system() - 3600)
    assert clock.now() >= before
    assert clock.system_now() < before - 3000


def test_times_of_a_clock_that_is_set_are_converted(monkeypatch):
    monkeypatch.setattr(time, "time", lambda: 500.0)
    monkeypatch.setattr(clock, "now", lambda: 9000.0)
    assert clock.from_system(490.0) == 8990.0


def test_waiting_ends_with_the_event():
    event = threading.Event()
    assert not clock.wait(event, 0.001)
    event.set()
    assert clock.wait(event, 1000.0)
