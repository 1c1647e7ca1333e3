"""Which of the processes that train one model this is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import tensorflow as tf

T = TypeVar("T")


@dataclass(frozen=True)
class Workers:
    """The processes that each hold a copy of the variables and save together.

    Args:
        index: The number of this one. Number 0 brings the parts together.
        names: All of them, such as `("worker:0", "worker:1")`.
    """

    index: int = 0
    names: tuple[str, ...] = ("worker:0",)

    @property
    def count(self) -> int:
        return len(self.names)

    @property
    def is_first(self) -> bool:
        return self.index == 0

    def share(self, sizes: Sequence[tuple[T, int]]) -> list[T]:
        """Of things with their sizes, those that this worker takes; all workers reckon alike."""
        loads = [0] * self.count
        mine = []
        for thing, size in sorted(sizes, key=lambda pair: pair[1], reverse=True):
            lightest = loads.index(min(loads))
            loads[lightest] += size
            if lightest == self.index:
                mine.append(thing)
        return mine


def workers_of(strategy: Any) -> Workers:
    """The workers of a strategy.

    With parameter servers one process, the coordinator, reads and writes all variables: it is
    alone. Only with several mirroring workers has each of them all variables.
    """
    if not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        return Workers()
    resolver = strategy.cluster_resolver
    cluster = resolver.cluster_spec().as_dict() if resolver is not None else {}
    names = tuple(
        f"{job}:{index}"
        for job in ("chief", "worker")
        for index in range(len(cluster.get(job, ())))
    )
    if len(names) < 2:
        return Workers()
    return Workers(names.index(f"{resolver.task_type}:{resolver.task_id}"), names)
