"""Every metric: its name, its unit, where it comes from and what it means.

The one table that sources, callback and docs go by. A source gives what it can; what it cannot give
is left out, and said once.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

NVML, ALLOCATOR, HOST, STEP = "driver", "TensorFlow", "host", "steps"


@dataclass(frozen=True)
class Metric:
    """One thing that is measured.

    Args:
        name: Its tag in TensorBoard.
        unit: What its numbers count.
        source: Who tells it.
        meaning: What it says.
        is_default: Whether it is logged if nothing else was asked for.
    """

    name: str
    unit: str
    source: str
    meaning: str
    is_default: bool = True


METRICS = (
    Metric("gpu/utilization", "%", NVML, "share of time in which a kernel ran"),
    Metric("gpu/memory_utilization", "%", NVML, "share of time in which memory was in use"),
    Metric("gpu/memory_used", "MiB", NVML, "memory in use, by whomever"),
    Metric("gpu/memory_free", "MiB", NVML, "memory not in use", is_default=False),
    Metric("gpu/memory_of_this_process", "MiB", NVML, "memory that this process holds"),
    Metric("gpu/memory_of_others", "MiB", NVML, "memory that other processes hold"),
    Metric("gpu/power", "W", NVML, "power drawn"),
    Metric("gpu/power_limit", "W", NVML, "power the driver allows", is_default=False),
    Metric("gpu/temperature", "°C", NVML, "temperature of the chip"),
    Metric("gpu/sm_clock", "MHz", NVML, "clock of the multiprocessors"),
    Metric("gpu/memory_clock", "MHz", NVML, "clock of the memory", is_default=False),
    Metric("gpu/throttled_power", "0 or 1", NVML, "whether power holds the clocks down"),
    Metric("gpu/throttled_heat", "0 or 1", NVML, "whether heat holds the clocks down"),
    Metric("gpu/throttled_other", "0 or 1", NVML, "whether anything else does", is_default=False),
    Metric("gpu/pcie_sent", "MB/s", NVML, "sent over PCIe"),
    Metric("gpu/pcie_received", "MB/s", NVML, "received over PCIe"),
    Metric("gpu/nvlink_sent", "MB/s", NVML, "sent over all NVLinks"),
    Metric("gpu/nvlink_received", "MB/s", NVML, "received over all NVLinks"),
    Metric("gpu/ecc_corrected", "errors", NVML, "memory errors mended since the driver was loaded"),
    Metric("gpu/ecc_uncorrected", "errors", NVML, "memory errors beyond mending, likewise"),
    Metric("gpu/energy", "J", NVML, "energy used in a step"),
    Metric("gpu/energy_per_sample", "J", NVML, "energy used for a sample"),
    Metric("gpu/sm_active", "%", NVML, "share of multiprocessors at work", is_default=False),
    Metric("gpu/sm_occupancy", "%", NVML, "share of warps at work", is_default=False),
    Metric("gpu/tensor_active", "%", NVML, "share of time tensor cores worked", is_default=False),
    Metric("gpu/dram_active", "%", NVML, "share of memory bandwidth in use", is_default=False),
    Metric("allocator/used", "MiB", ALLOCATOR, "memory that tensors hold now"),
    Metric("allocator/peak", "MiB", ALLOCATOR, "the most that tensors held so far"),
    Metric("host/cpu", "% of a core", HOST, "processor time of this process"),
    Metric("host/memory", "MiB", HOST, "memory of this process (resident)"),
    Metric("host/memory_free", "MiB", HOST, "memory free on the whole machine", is_default=False),
    Metric("host/threads", "threads", HOST, "threads of this process", is_default=False),
    Metric("host/disk_read", "MB/s", HOST, "read from disks by this process"),
    Metric("host/disk_written", "MB/s", HOST, "written to disks by this process"),
    Metric("host/network_sent", "MB/s", HOST, "sent by the whole machine"),
    Metric("host/network_received", "MB/s", HOST, "received by the whole machine"),
    Metric("train/step_time", "ms", STEP, "from the start of a step to the start of the next"),
    Metric("train/samples_per_second", "1/s", STEP, "samples trained"),
    Metric("train/between_steps", "ms", STEP, "from the end of a step to the start of the next"),
    Metric("train/imbalance", "ratio", STEP, "the busiest GPU's utilization by the mean of all"),
    Metric("train/slowest_worker", "number", STEP, "the worker that takes longest between steps"),
)
# What a metric is reckoned from, if that is another one.
NEEDS = {"gpu/energy_per_sample": "gpu/energy", "train/imbalance": "gpu/utilization"}
MANY = '"default", "all"'
BY_NAME = {metric.name: metric for metric in METRICS}
# Looked at once a second at most: what moves slowly, counters that lose nothing, and what takes
# long to read. Steps share by time what a counter has counted.
SLOW = frozenset(
    [
        "gpu/memory_of_this_process",
        "gpu/memory_of_others",
        "gpu/power_limit",
        "gpu/temperature",
        "gpu/pcie_sent",
        "gpu/pcie_received",
        "gpu/nvlink_sent",
        "gpu/nvlink_received",
        "gpu/ecc_corrected",
        "gpu/ecc_uncorrected",
        "gpu/energy",
        "gpu/energy_per_sample",
        *(metric.name for metric in METRICS if metric.source == HOST),
    ]
)


def choose(names: str | Iterable[str]) -> tuple[Metric, ...]:
    """The metrics of these names; `"default"` and `"all"` stand for many.

    Raises:
        ValueError: If there is no such metric; suggests near ones.
    """
    if not isinstance(names, Iterable):
        raise ValueError(
            f"`metrics` must be {MANY} or a list of names. Received: metrics={names!r}"
        )
    many = {"default": [each.name for each in METRICS if each.is_default], "all": list(BY_NAME)}
    names = [names] if isinstance(names, str) else names
    chosen = [each for name in names for each in many.get(name, [name])]
    for name in chosen:
        if name not in BY_NAME:
            near = _near(name)
            hint = f"Did you mean {' or '.join(map(repr, near))}?" if near else _all_names()
            raise ValueError(f"There is no such metric. {hint} Received: metrics={name!r}")
    return tuple(metric for metric in METRICS if metric.name in chosen)


def with_needed(names: Collection[str]) -> frozenset[str]:
    """These metrics, and those that they are reckoned from."""
    return frozenset(names) | {NEEDS[name] for name in names if name in NEEDS}


def _near(name: object) -> Sequence[str]:
    text = str(name)
    by_last = {each.rpartition("/")[2]: each for each in BY_NAME}
    last = difflib.get_close_matches(text.rpartition("/")[2], by_last, n=2)
    return [by_last[each] for each in last] or difflib.get_close_matches(text, BY_NAME, n=2)


def _all_names() -> str:
    return f"There are: {MANY}, {', '.join(BY_NAME)}."


def markdown() -> str:
    """The table for the docs."""
    lines = ["| metric | unit | from | meaning |", "|---|---|---|---|"]
    for metric in METRICS:
        more = "; once a second at most" if metric.name in SLOW else ""
        more += "" if metric.is_default else " (only if asked for)"
        lines.append(
            f"| `{metric.name}` | {metric.unit} | {metric.source} | {metric.meaning}{more} |"
        )
    return "\n".join(lines) + "\n"
