"""Samples, and how they are summed up for the training steps they belong to."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

Key = tuple[str, str]  # Device and metric.


class Sample(NamedTuple):
    """One number. A tuple, since hundreds are made per second and a dataclass takes longer.

    Args:
        device: The run that it belongs to, such as `"gpu_0"`.
        metric: Name of the metric.
        time: When it was taken, in seconds since 1970.
        value: The number.
        since: For an amount that has built up evenly since then, such as energy.
    """

    device: str
    metric: str
    time: float
    value: float
    since: float | None = None

    def split_at(self, times: Sequence[float]) -> list[Sample]:
        """Splits an amount into what has built up before, between and after these times."""
        begin = self.time if self.since is None else self.since
        inside = times[bisect_right(times, begin) : bisect_left(times, self.time)]
        if not inside:
            return [self]
        rate = self.value / (self.time - begin)
        return [
            self._replace(since=since, time=until, value=rate * (until - since))
            for since, until in zip((begin, *inside), (*inside, self.time))
        ]


class Samples(NamedTuple):
    """Numbers that were kept by something else, such as the driver.

    Args:
        device: The run that they belong to.
        metric: Name of the metric.
        times: When they were taken, ascending, in seconds since 1970.
        values: The number at each of these times.
    """

    device: str
    metric: str
    times: Sequence[float]
    values: Sequence[float]


@dataclass
class Summary:
    """What the samples of one metric add up to."""

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
    """Sums up samples for the steps in which they were taken. None is lost or counted twice.

    A sample that arrives after its step was taken counts for the next step.
    """

    def __init__(self) -> None:
        self._ends: list[float] = []  # When each step ended.
        self._sums: list[Summaries] = [{}]  # One per step, and one for everything after them.

    def end_step(self, time: float) -> None:
        """Ends a step: later samples belong to another one."""
        self._ends.append(time)
        self._sums.append({})

    def add(self, samples: Iterable[Sample | Samples]) -> None:
        for sample in samples:
            if isinstance(sample, Samples):
                self._add_kept(sample)
            else:
                for part in (sample,) if sample.since is None else sample.split_at(self._ends):
                    sums = self._sums[bisect_left(self._ends, part.time)]
                    _summary(sums, part).add(part.value)

    def _add_kept(self, samples: Samples) -> None:
        begin = 0
        for time, sums in zip((*self._ends, math.inf), self._sums):
            end = bisect_right(samples.times, time, begin)
            if end > begin:
                values = samples.values[begin:end]
                summary = Summary(sum(values), len(values), max(values), values[-1])
                _summary(sums, samples).add_all(summary)
            begin = end

    def take(self, num_steps: int) -> list[Summaries]:
        """Removes the first steps and returns their sums."""
        taken = self._sums[:num_steps]
        del self._sums[:num_steps], self._ends[:num_steps]
        return taken

    def take_all(self) -> list[Summaries]:
        """Removes all steps and returns their sums. What came after the last step counts for it."""
        *taken, rest = self._sums
        for key, summary in rest.items():
            taken[-1].setdefault(key, Summary()).add_all(summary)
        self._ends, self._sums = [], [{}]
        return taken


def _summary(sums: Summaries, sample: Sample | Samples) -> Summary:
    key = sample.device, sample.metric
    if key not in sums:
        sums[key] = Summary()
    return sums[key]
