"""Samples that come in at any time, summed up for the steps they belong to."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

Key = tuple[str, str]  # Device and metric.


class Sample(NamedTuple):
    """One number. There are hundreds in a second: a tuple is made faster than a dataclass.

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

    def cut(self, moments: Sequence[float]) -> list[Sample]:
        """An amount, cut into what came together before, between and behind these moments."""
        begin = self.time if self.since is None else self.since
        inside = moments[bisect_right(moments, begin) : bisect_left(moments, self.time)]
        if not inside:
            return [self]
        rate = self.value / (self.time - begin)
        return [
            self._replace(since=since, time=until, value=rate * (until - since))
            for since, until in zip((begin, *inside), (*inside, self.time))
        ]


class Samples(NamedTuple):
    """Numbers that somebody has kept, such as the driver.

    Args:
        device: Whose.
        metric: Name of the metric.
        times: When, ascending, in seconds since 1970.
        values: How much at each of them.
    """

    device: str
    metric: str
    times: Sequence[float]
    values: Sequence[float]


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

    def add_all(self, later: Summary) -> None:
        self.total += later.total
        self.count += later.count
        self.max = max(self.max, later.max)
        self.last = later.last

    @property
    def mean(self) -> float:
        return self.total / self.count


Summaries = dict[Key, Summary]


class Series:
    """Sums up samples for the steps they were taken in: each is taken once, and none is lost.

    A sample that comes in late, when its step was taken already, counts for the next one.
    """

    def __init__(self) -> None:
        self._moments: list[float] = []  # When each step ended.
        self._sums: list[Summaries] = [{}]  # Of each step, and of what is behind them.

    def end_step(self, moment: float) -> None:
        """What is sampled from this moment on belongs to another step."""
        self._moments.append(moment)
        self._sums.append({})

    def add(self, samples: Iterable[Sample | Samples]) -> None:
        for sample in samples:
            if isinstance(sample, Samples):
                self._add_kept(sample)
            else:
                for part in (sample,) if sample.since is None else sample.cut(self._moments):
                    sums = self._sums[bisect_left(self._moments, part.time)]
                    _summary(sums, part).add(part.value)

    def _add_kept(self, samples: Samples) -> None:
        begin = 0
        for moment, sums in zip((*self._moments, math.inf), self._sums):
            end = bisect_right(samples.times, moment, begin)
            if end > begin:
                values = samples.values[begin:end]
                summary = Summary(sum(values), len(values), max(values), values[-1])
                _summary(sums, samples).add_all(summary)
            begin = end

    def take(self, num_steps: int) -> list[Summaries]:
        """What the first steps came to."""
        taken = self._sums[:num_steps]
        del self._sums[:num_steps], self._moments[:num_steps]
        return taken

    def take_all(self) -> list[Summaries]:
        """What all steps came to, the last one with everything behind it."""
        *taken, behind = self._sums
        for key, summary in behind.items():
            taken[-1].setdefault(key, Summary()).add_all(summary)
        self._moments, self._sums = [], [{}]
        return taken


def _summary(sums: Summaries, sample: Sample | Samples) -> Summary:
    key = sample.device, sample.metric
    if key not in sums:
        sums[key] = Summary()
    return sums[key]
