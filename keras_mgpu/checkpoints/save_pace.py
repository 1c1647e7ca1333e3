"""Whether it is time to save, from what has passed since the last save."""

from __future__ import annotations

from keras_mgpu.checkpoints.save_timing import Passed, SaveTiming


class SavePace:
    """Remembers the last save of a run.

    Args:
        timing: When to save.
        every_epoch: Whether to save after every epoch as well.
    """

    def __init__(self, timing: SaveTiming, every_epoch: bool = False) -> None:
        self._timing, self._every_epoch = timing, every_epoch
        self._step, self._time = 0, 0.0
        self._stall: float | None = None

    def start(self, step: int, now: float) -> None:
        """Begins a run, of which `step` steps are saved already."""
        self._step, self._time, self._stall = step, now, None

    def saved(self, step: int, now: float, stall: float) -> None:
        """Notes a save that training has waited `stall` seconds for."""
        self._step, self._time, self._stall = step, now, stall

    def num_unsaved(self, step: int) -> int:
        """Steps that would be lost now."""
        return step - self._step

    def is_due(self, step: int, now: float, epoch_ended: bool) -> bool:
        """Whether to save after `step` steps."""
        passed = Passed(self.num_unsaved(step), now - self._time, self._stall, epoch_ended)
        return self._timing.is_due(passed) or (epoch_ended and self._every_epoch)
