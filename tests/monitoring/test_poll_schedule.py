"""When sources are polled, by a clock that only the test moves."""

import numpy as np
import pytest

from keras_mgpu.monitoring.poll_schedule import polls
from keras_mgpu.monitoring.source import Due


def record(clock, interval, seconds, poll_seconds=0.0):
    """Time and kind of each poll, where each poll takes so long."""

    def wait(delay):
        clock.advance(max(delay, 0.0))
        return clock.seconds < seconds

    found = []
    for due in polls(interval, wait):
        found.append((clock.seconds, due))
        clock.advance(poll_seconds)
    return found


def test_short_intervals_read_what_is_kept_once_per_second(fake_clock):
    found = record(fake_clock, interval=0.125, seconds=4.0)
    assert [time for time, _ in found] == [0.125 * number for number in range(1, 32)]
    assert all(due.momentary for _, due in found)
    kept = [time for time, due in found if due.kept]
    assert kept == pytest.approx([1.0, 2.0, 3.0], abs=0.13)


def test_long_intervals_still_read_what_is_kept_once_per_second(fake_clock):
    found = record(fake_clock, interval=4.5, seconds=10.0)
    assert max(np.diff([time for time, due in found if due.kept])) <= 1.0
    assert [time for time, due in found if due.momentary] == pytest.approx([4.5, 9.0])
    assert [due.slow for _, due in found] == [due.momentary for _, due in found]


def test_what_is_kept_is_read_in_time_when_polls_are_slow(fake_clock):
    """A driver may take longer to answer than the interval is long."""
    found = record(fake_clock, interval=0.001, seconds=5.0, poll_seconds=0.02)
    kept = [time for time, due in found if due.kept]
    assert max(np.diff(kept)) < 1.1
    assert len(kept) < 7  # And not at each poll.


def test_polls_that_take_too_long_are_not_made_up_for(fake_clock):
    found = record(fake_clock, interval=0.125, seconds=2.0, poll_seconds=0.5)
    assert min(np.diff([time for time, _ in found])) >= 0.5


def test_slow_values_are_read_when_both_are_due():
    assert Due().slow
    assert not Due(kept=False).slow
    assert not Due(momentary=False).slow
