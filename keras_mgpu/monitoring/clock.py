"""The time, as everything in this folder reads it.

`now` is the time of day when the process started, and from then on the monotonic clock. So it
neither jumps nor goes back during a run, even if somebody sets the system's clock.
"""

from __future__ import annotations

import threading
import time

_OFFSET = time.time() - time.monotonic()


def now() -> float:
    """Seconds since 1970, never going back."""
    return _OFFSET + time.monotonic()


def system_now() -> float:
    """Seconds since 1970 by the system's clock, which can be set. The driver goes by it."""
    return time.time()


def from_system(timestamp: float) -> float:
    """Converts a time of the system's clock to the time of `now`."""
    return now() - (system_now() - timestamp)


def wait(event: threading.Event, seconds: float) -> bool:
    """Waits until `event` is set, for so many seconds at most; returns whether it is set."""
    return event.wait(seconds)
