"""Times the steps of a run, and what lies between them."""

from __future__ import annotations


class StepTimer:
    """Adds up the time between steps: reading data in a custom loop, and other callbacks.

    Attributes:
        end: When the last step ended.
        between_steps: Seconds spent between steps so far.
    """

    def __init__(self) -> None:
        self.end = self.between_steps = 0.0
        self._begin = 0.0

    def start(self, now: float) -> None:
        """Begins a run."""
        self._begin = self.end = now

    def begin_step(self, now: float) -> None:
        self._begin = now

    def end_step(self, now: float) -> None:
        self.between_steps += self._begin - self.end
        self.end = now
