"""What changed in the placement between two runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from keras_mgpu.placements.report import PlacementReport

T = TypeVar("T")
ADDED, GONE = "added", "gone"


@dataclass(frozen=True)
class Change:
    """One difference.

    Args:
        where: The layer, the device or the pair of devices.
        what: The property that changed, or `"added"` or `"gone"`.
        before: Its value in the first run.
        after: Its value in the second run.
    """

    where: str
    what: str
    before: str = ""
    after: str = ""


def differences(before: PlacementReport, after: PlacementReport) -> list[Change]:
    """Every difference, in the order of the layers."""
    found = [
        Change("(all)", field, str(getattr(before, field)), str(getattr(after, field)))
        for field in ("model", "strategy", "num_samples", "source")
        if getattr(before, field) != getattr(after, field)
    ]
    found += _compare(before.layers, after.layers, lambda layer: layer.path)
    found += _compare(before.devices, after.devices, lambda device: device.device)
    found += _compare(before.edges, after.edges, lambda edge: f"{edge.source} to {edge.target}")
    found += _compare(before.collectives, after.collectives, lambda c: f"{c.device} {c.op}")
    found += _compare(
        before.moved, after.moved, lambda m: f"{m.layer} {m.op} from {m.asked} to {m.got}"
    )
    return found


def _compare(before: Iterable[T], after: Sequence[T], key: Callable[[T], str]) -> list[Change]:
    old = {key(each): each for each in before}
    new = {key(each): each for each in after}
    found = []
    for name in [*old, *(name for name in new if name not in old)]:
        if name not in new:
            found.append(Change(name, GONE))
        elif name not in old:
            found.append(Change(name, ADDED))
        else:
            was, now = vars(old[name]), vars(new[name])
            found += [
                Change(name, field, _as_text(was[field]), _as_text(now[field]))
                for field in was
                if was[field] != now[field]
            ]
    return found


def _as_text(value: Any) -> str:
    if isinstance(value, tuple):
        return ", ".join(_as_text(each) for each in value) or "none"
    return "none" if value in (None, "") else str(value)
