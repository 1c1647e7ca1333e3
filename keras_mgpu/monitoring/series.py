"""Samples that come in at any time, summed up for the steps they belong to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

Key = tuple[str, str]  # Device and metric.


class Sample(NamedTuple):
    """One number. There are thousands in a second: a tuple is made faster than a dataclass.

    Args:
        device: Whose.
        metric: Name of the metric.
        time: When, in seconds since 1970.
        value: How much.
        since: For an amount that came together evenly since then, such as energy.
    """

    device: str
    metric: str
    time: float
    value: float
    since: float | None = None

    def split(self, moment: float) -> tuple[Sample | None, Sample | None]:
        """What belongs before a moment, and what behind it."""
        if self.time <= moment:
            return self, None
        if self.since is None or self.since >= moment:
            return None, self
        part = self.value * (moment - self.since) / (self.time - self.since)
        before = self._replace(time=moment, value=part)
        return before, self._replace(since=moment, value=self.value - part)


@dataclass
class Summary:
    """What the samples of one metric came to."""

    total: float = 0.0
    count: int = 0
    max: float = float("-inf")
    last: float = 0.0

    def add(self, value: float) -> None:
        self.total += value
        self.count += 1
        if value > self.max:
            self.max = value
        self.last = value

    @property
    def mean(self) -> float:
        return self.total / self.count


class Series:
    """Sums up samples until a step takes them: each is taken once, and none is lost."""

    def __init__(self) -> None:
        self._sums: dict[Key, Summary] = {}
        self._new: list[Sample] = []

    def add(self, samples: Iterable[Sample]) -> None:
        self._new.extend(samples)

    def take(self, until: float) -> Mapping[Key, Summary]:
        """Everything sampled up to a moment; the rest waits for the next step."""
        rest = []
        for sample in self._new:
            before, behind = sample.split(until)
            if before is not None:
                self._sum(before)
            if behind is not None:
                rest.append(behind)
        taken, self._sums, self._new = self._sums, {}, rest
        self.fold()
        return taken

    def fold(self) -> None:
        """Sums up what has come in; right when no step is to come that ended before it."""
        for sample in self._new:
            self._sum(sample)
        self._new = []

    def _sum(self, sample: Sample) -> None:
        key = sample.device, sample.metric
        if key not in self._sums:
            self._sums[key] = Summary()
        self._sums[key].add(sample.value)
