"""Time that passes only when a test says so, in the training thread and in the monitor's."""

import threading
import time

from keras_mgpu.monitoring import clock
from keras_mgpu.monitoring.monitor import THREAD_NAME

PATIENCE = 60.0  # For a test that would hang otherwise.


class FakeClock:
    """Stands in for `keras_mgpu.monitoring.clock`.

    Args:
        on_change: Called with the new time, for others that have a clock of their own.
    """

    def __init__(self, on_change=lambda now: None):
        self._now = self.start = 1_700_000_000.0
        self._on_change = on_change
        self._deadlines = {}  # Of each thread that waits.
        self._strangers = {each.ident for each in monitor_threads()}
        self.system_offset = 0.0  # What the system's clock was set by.
        on_change(self._now)

    def install(self, monkeypatch):
        for name in ("now", "system_now", "wait"):
            monkeypatch.setattr(clock, name, getattr(self, name))
        return self

    def now(self):
        return self._now

    def system_now(self):
        return self._now + self.system_offset

    @property
    def seconds(self):
        """Since the clock was made."""
        return self._now - self.start

    def wait(self, event, seconds):
        """For a monitor's thread: waits until a test has let the time pass."""
        me, deadline = threading.get_ident(), self._now + seconds
        self._deadlines[me] = deadline
        while not event.is_set() and self._now < deadline:
            event.wait(0.0003)
        del self._deadlines[me]
        return event.is_set()

    def advance(self, seconds):
        """Lets time pass; returns when every monitor has done what was due by then."""
        end = self._now + seconds
        self._settle()
        while due := [each for each in list(self._deadlines.values()) if each <= end]:
            self.set(min(due))
            self._settle()
        self.set(end)

    def set(self, now):
        self._now = now
        self._on_change(now)

    def _settle(self):
        """Waits until each monitor waits for a time that has not come yet, or has ended."""
        until = time.monotonic() + PATIENCE
        while any(self._is_busy(thread) for thread in monitor_threads()):
            assert time.monotonic() < until, "the monitor's thread does not come to rest"
            time.sleep(0.0002)

    def _is_busy(self, thread):
        is_ours = thread.ident not in self._strangers
        return is_ours and self._deadlines.get(thread.ident, self._now) <= self._now


def monitor_threads():
    return [each for each in threading.enumerate() if each.name == THREAD_NAME]
