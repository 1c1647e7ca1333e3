"""How much of the machine other processes took while a benchmark ran.

Something else that holds one of two cores can double a step's time and turn the order of the rows
round, and nobody sees it in the table. So each result says how idle the machine was.
"""

from __future__ import annotations

import os
import resource
import time
from pathlib import Path


class OtherLoad:
    """Counts, from its making on, the cores that neither this process nor its children used."""

    def __init__(self) -> None:
        self._began = time.perf_counter()
        self._others = _machine_seconds() - _own_seconds()

    def cores(self) -> float:
        """The average since then. Children count once they have ended."""
        others = _machine_seconds() - _own_seconds() - self._others
        return max(0.0, others / (time.perf_counter() - self._began))


def _machine_seconds() -> float:
    """CPU time of everything: user, nice, system, irq, softirq, steal; not idle, not waiting."""
    ticks = Path("/proc/stat").read_text(encoding="ascii").splitlines()[0].split()[1:9]
    user, nice, system, _idle, _wait, irq, soft_irq, steal = map(int, ticks)
    return (user + nice + system + irq + soft_irq + steal) / os.sysconf("SC_CLK_TCK")


def _own_seconds() -> float:
    usages = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)
