"""Which steps are written to the event files."""

from __future__ import annotations

import numbers
from typing import Any


class WriteSchedule:
    """Decides after each step whether to write it.

    Args:
        update_freq: `"batch"`, `"epoch"`, or a number of batches.
        interval: Seconds between two written steps at least.
    """

    def __init__(self, update_freq: str | int, interval: float) -> None:
        self._every = _num_batches(update_freq)
        self.interval = _check_interval(interval)
        self._step, self._time = 0, 0.0

    def start(self, step: int, now: float) -> None:
        """Begins a run. The step it begins at has been written, if any."""
        self._step, self._time = step, now

    def is_due(self, step: int, num_steps: int, now: float) -> bool:
        """Whether to write a step.

        Args:
            step: Steps trained so far.
            num_steps: How many of them the last call has trained.
            now: When that call ended.
        """
        is_multiple = self._every is not None and step % self._every < num_steps
        return is_multiple and now - self._time >= self.interval

    def written(self, step: int, now: float) -> bool:
        """Notes that a step is written now; returns whether that is new."""
        is_new = step != self._step
        if is_new:
            self._step, self._time = step, now
        return is_new


def _num_batches(update_freq: Any) -> int | None:
    """The number of batches, or `None` for epochs."""
    if isinstance(update_freq, str) and update_freq in ("batch", "epoch"):
        return 1 if update_freq == "batch" else None
    if not is_count(update_freq):
        raise ValueError(
            '`update_freq` must be "batch", "epoch" or a positive integer. '
            f"Received: update_freq={update_freq!r}"
        )
    return int(update_freq)


def _check_interval(interval: Any) -> float:
    is_number = isinstance(interval, numbers.Real) and not isinstance(interval, bool)
    if not is_number or not 0 < interval < float("inf"):
        raise ValueError(
            f"`interval` must be a positive number of seconds. Received: interval={interval!r}"
        )
    return float(interval)


def is_count(value: Any) -> bool:
    """Whether a value is a positive integer, of Python or of NumPy."""
    is_integer = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    return is_integer and int(value) >= 1
