"""Samples that come in at any time, summed up for the steps they belong to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

Key = tuple[str, str]  # Device and metric.


@dataclass(frozen=True)
class Sample:
    """One number.

    Args:
        device: Whose.
        metric: Name of the metric.
        time: When, in seconds since 1970.
        value: How much.
    """

    device: str
    metric: str
    time: float
    value: float


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
        self.max = max(self.max, value)
        self.last = value

    @property
    def mean(self) -> float:
        return self.total / self.count


class Series:
    """Keeps samples until a step takes them: each is taken once, and none is lost."""

    def __init__(self) -> None:
        self._waiting: list[Sample] = []

    def add(self, samples: Iterable[Sample]) -> None:
        self._waiting.extend(samples)

    def take(self, until: float) -> Mapping[Key, Summary]:
        """Sums up everything sampled up to a moment; later samples wait for the next step."""
        found: dict[Key, Summary] = {}
        later = []
        for sample in self._waiting:
            if sample.time > until:
                later.append(sample)
                continue
            key = sample.device, sample.metric
            if key not in found:
                found[key] = Summary()
            found[key].add(sample.value)
        self._waiting = later
        return found
