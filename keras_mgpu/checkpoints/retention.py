"""Decides which checkpoints to keep. Plain data in, plain data out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

HIGHER_IS_BETTER = ("acc", "auc", "precision", "recall", "f1", "fbeta", "iou", "r2", "cosine")


@dataclass(frozen=True)
class Saved:
    """What retention needs to know about a checkpoint.

    Args:
        name: Name of its folder. Names sort in the order of saving.
        step: Training steps taken when it was saved.
        value: The monitored value; `None` without one.
    """

    name: str
    step: int
    value: float | None = None


@dataclass(frozen=True)
class Retention:
    """Which checkpoints to keep: those that match any of these rules.

    Args:
        last: Number of newest checkpoints to keep, at least 1.
        best: Number of checkpoints with the best values to keep.
        mode: `"min"` or `"max"`: which values are better.
        every: Keep one checkpoint per `every` steps forever: the first one saved in them.
    """

    last: int = 3
    best: int = 0
    mode: str = "min"
    every: int | None = None

    def kept(self, saved: Sequence[Saved]) -> set[str]:
        """The names of the checkpoints to keep."""
        in_order = sorted(saved, key=lambda each: each.name)
        return {
            each.name
            for each in [*in_order[-self.last :], *self._best(in_order), *self._every(in_order)]
        }

    def _best(self, in_order: Sequence[Saved]) -> list[Saved]:
        sign = -1 if self.mode == "max" else 1
        rated = [
            (sign * each.value, each)
            for each in in_order
            if each.value is not None and not math.isnan(each.value)
        ]
        rated.sort(key=lambda pair: pair[0])  # The sort is stable: the earlier of equal ones wins.
        return [each for _, each in rated[: self.best]]

    def _every(self, in_order: Sequence[Saved]) -> list[Saved]:
        if self.every is None:
            return []
        firsts: dict[int, Saved] = {}
        for each in in_order:
            firsts.setdefault(each.step // self.every, each)
        firsts.pop(0, None)  # Nothing before the first `every` steps is kept forever.
        return list(firsts.values())


def resolve_mode(mode: str, monitor: str | None) -> str:
    """Resolves `"auto"` to `"max"` if higher values of `monitor` are better, else to `"min"`."""
    if mode not in ("auto", "min", "max"):
        raise ValueError(f'`mode` must be "auto", "min" or "max". Received: mode={mode!r}')
    if mode != "auto":
        return mode
    name = (monitor or "").lower()
    return "max" if any(word in name for word in HIGHER_IS_BETTER) else "min"


def make_retention(
    keep_last: int, keep_best: int, monitor: str | None, mode: str, keep_every: int | None
) -> Retention:
    """The retention that the arguments of `DistributedCheckpoint` ask for."""
    _check_count("keep_last", keep_last, least=1)
    _check_count("keep_best", keep_best, least=0)
    if keep_every is not None:
        _check_count("keep_every", keep_every, least=1)
    if keep_best and monitor is None:
        raise ValueError(
            "`keep_best` needs a value to compare: pass `monitor` too, for example "
            f'`monitor="val_loss"`. Received: keep_best={keep_best}, monitor=None'
        )
    return Retention(keep_last, keep_best, resolve_mode(mode, monitor), keep_every)


def _check_count(name: str, value: object, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        kind = "a positive integer" if least else "a non-negative integer"
        raise ValueError(f"`{name}` must be {kind}. Received: {name}={value!r}")
