"""Which metrics a user asks for, and what follows from the choice."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Sequence

from keras_mgpu.monitoring.catalogue import BY_NAME, METRICS, Metric, Origin, Pace

_SHORTHANDS = '"default", "all"'


def choose(names: str | Iterable[str]) -> tuple[Metric, ...]:
    """The metrics of these names; `"default"` and `"all"` stand for many.

    Raises:
        ValueError: If there is no metric of that name; suggests similar names.
    """
    if not isinstance(names, Iterable):
        raise ValueError(
            f"`metrics` must be {_SHORTHANDS} or a list of names. Received: metrics={names!r}"
        )
    many = {"default": [each.name for each in METRICS if each.is_default], "all": list(BY_NAME)}
    names = [names] if isinstance(names, str) else names
    chosen = [each for name in names for each in many.get(name, [name])]
    for name in chosen:
        _check_name(name)
    return tuple(metric for metric in METRICS if metric.name in chosen)


def with_sources(names: Collection[str]) -> frozenset[str]:
    """These metrics, and those that they are computed from."""
    needed = [BY_NAME[name].computed_from for name in names]
    return frozenset(names) | {name for name in needed if name is not None}


def tags_of(names: Iterable[str]) -> frozenset[str]:
    """Every tag that these metrics are logged under."""
    return frozenset(tag for name in names for tag in BY_NAME[name].tags)


def come_from(origin: Origin, names: Iterable[str]) -> bool:
    """Whether any of these metrics comes from there."""
    return any(BY_NAME[name].origin is origin for name in names)


def are_slow(names: Iterable[str]) -> bool:
    """Whether it is enough to read all of these metrics once per second."""
    return all(BY_NAME[name].pace is Pace.ONCE_PER_SECOND for name in names)


def _check_name(name: object) -> None:
    if name in BY_NAME:
        return
    similar = _similar(str(name))
    hint = (
        f"Did you mean {' or '.join(map(repr, similar))}?"
        if similar
        else f"Available metrics: {_SHORTHANDS}, {', '.join(BY_NAME)}."
    )
    raise ValueError(f"Unknown metric. {hint} Received: metrics={name!r}")


def _similar(text: str) -> Sequence[str]:
    by_last = {each.rpartition("/")[2]: each for each in BY_NAME}
    last = difflib.get_close_matches(text.rpartition("/")[2], by_last, n=2)
    return [by_last[each] for each in last] or difflib.get_close_matches(text, BY_NAME, n=2)
