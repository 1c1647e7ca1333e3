"""Which steps are profiled."""

from __future__ import annotations

import sys
from typing import Any

from keras_mgpu.monitoring.write_schedule import is_count

_NEVER = sys.maxsize


class ProfilingSchedule:
    """Decides before each step whether to profile it.

    Args:
        timeline_every: `"epoch"`, a number of batches, or `None` for never.
    """

    def __init__(self, timeline_every: str | int | None) -> None:
        self._every = _check(timeline_every)
        self._first = self._next = _NEVER

    @property
    def is_on(self) -> bool:
        """Whether any step is to be profiled."""
        return self._every is not None

    def start(self, step: int, num_reserved: int = 0) -> None:
        """Begins a run.

        The first step of a run is never profiled: TensorFlow builds its graph in it.

        Args:
            step: Steps trained so far.
            num_reserved: Steps that the user's own profiler needs.
        """
        self._first = step + num_reserved + 1
        self._next = self._first if self.is_on else _NEVER

    def stop(self) -> None:
        """Profiles nothing until the next start."""
        self._first = self._next = _NEVER

    def begin_epoch(self, step: int) -> None:
        if self._every == "epoch" and self._first != _NEVER:
            self._next = max(step, self._first)

    def is_due(self, step: int) -> bool:
        """Whether to profile the step that follows `step` steps."""
        return step >= self._next

    def profiled(self, step: int) -> None:
        """Notes that the step was profiled after which `step` steps are done."""
        self._next = step - 1 + self._every if isinstance(self._every, int) else _NEVER

    def try_again(self) -> None:
        """Profiles the next step, since the last profile was not complete."""
        self._next = self._first


def _check(every: Any) -> str | int | None:
    if every is None or (isinstance(every, str) and every == "epoch"):
        return every
    if not is_count(every):
        raise ValueError(
            '`timeline_every` must be "epoch", a positive integer or None. '
            f"Received: timeline_every={every!r}"
        )
    return int(every)
