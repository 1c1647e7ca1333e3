"""When to save: after epochs, batches or seconds, or as often as a time budget allows.

A timing decides by what has passed since the last save. It has no state.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Passed:
    """What has passed since the last save, or since the start.

    Args:
        batches: Batches trained.
        seconds: Time that has passed, by a monotonic clock.
        stall: Seconds that training waited for the last save; `None` before the first one.
        epoch_ended: Whether an epoch has just ended.
    """

    batches: int
    seconds: float
    stall: float | None
    epoch_ended: bool


class SaveTiming(Protocol):
    """Decides after each batch and each epoch."""

    def is_due(self, passed: Passed) -> bool: ...


@dataclass(frozen=True)
class EveryEpoch:
    """After every epoch."""

    def is_due(self, passed: Passed) -> bool:
        return passed.epoch_ended


@dataclass(frozen=True)
class EveryBatches:
    """After a number of batches, counted across epochs."""

    batches: int

    def is_due(self, passed: Passed) -> bool:
        return passed.batches >= self.batches


@dataclass(frozen=True)
class EverySeconds:
    """After a number of seconds, at the end of a batch."""

    seconds: float

    def is_due(self, passed: Passed) -> bool:
        return passed.batches > 0 and passed.seconds >= self.seconds


@dataclass(frozen=True)
class LimitedOverhead:
    """As often as possible while saving takes at most a share of the training time.

    The first save is after the first batch, to measure what it costs.

    Args:
        share: The share of the training time, such as 0.01.
        seconds: Save at least this often, even if it takes a larger share.
    """

    share: float
    seconds: float | None = None

    def is_due(self, passed: Passed) -> bool:
        if passed.batches == 0:
            return False
        if passed.stall is None:
            return True
        wait = passed.stall / self.share
        return passed.seconds >= (wait if self.seconds is None else min(wait, self.seconds))


def make_timing(
    save_freq: str | int, seconds: float | None = None, overhead: float | None = None
) -> SaveTiming:
    """The timing that the arguments of `DistributedCheckpoint` ask for."""
    is_count = isinstance(save_freq, int) and not isinstance(save_freq, bool)
    if not (save_freq == "epoch" or (is_count and int(save_freq) >= 1)):
        raise ValueError(
            '`save_freq` must be "epoch" or a positive number of batches. To save by time, use '
            f"`seconds` or `overhead`. Received: save_freq={save_freq!r}"
        )
    if is_count and (seconds is not None or overhead is not None):
        raise ValueError(
            "Give either a number of batches or a time, not both. "
            f"Received: save_freq={save_freq!r}, seconds={seconds!r}, overhead={overhead!r}"
        )
    if seconds is not None and not seconds > 0:
        raise ValueError(f"`seconds` must be positive. Received: seconds={seconds!r}")
    if overhead is not None and not 0 < overhead < 1:
        raise ValueError(
            "`overhead` must be a share of the training time between 0 and 1, such as 0.01. "
            f"Received: overhead={overhead!r}"
        )
    if overhead is not None:
        return LimitedOverhead(overhead, seconds)
    if seconds is not None:
        return EverySeconds(seconds)
    return EveryBatches(int(save_freq)) if is_count else EveryEpoch()
