"""The time of day, by a clock that nobody sets: it neither jumps nor goes back in a run."""

from __future__ import annotations

import time

_OFFSET = time.time() - time.monotonic()


def now() -> float:
    """Seconds since 1970."""
    return _OFFSET + time.monotonic()


def from_system(moment: float) -> float:
    """A moment by the system's clock, as this one has it."""
    return now() - (time.time() - moment)
