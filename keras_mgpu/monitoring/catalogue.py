"""Every metric, one row each: the only place that states a fact about a metric.

Sources, callback, charts and docs derive what they need from this table.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Origin(enum.Enum):
    """Where the numbers of a metric come from; the value is what the docs call it."""

    DRIVER = "driver"
    ALLOCATOR = "TensorFlow"
    HOST = "host"
    TRAINING = "steps"


class Pace(enum.Enum):
    """How often a metric is read.

    Once per second at most is enough for values that change slowly or take long to read, and for
    counters: nothing gets lost in a counter, and steps share by time what it has counted.
    """

    EVERY_POLL = enum.auto()
    ONCE_PER_SECOND = enum.auto()


class ChartGroup(enum.Enum):
    """The groups of TensorBoard's Custom Scalars tab, in their order there."""

    WORK = "Work"
    MEMORY = "Memory"
    TRAFFIC = "Traffic"
    POWER = "Power and heat"
    TRAINING = "Training"
    HOST = "Host"


@dataclass(frozen=True)
class Metric:
    """One metric.

    Args:
        name: Its tag in TensorBoard.
        unit: The unit of its numbers.
        origin: Where they come from.
        meaning: What they mean.
        is_default: Whether it is logged unless other metrics are asked for.
        pace: How often it is read.
        chart: The group of charts that shows it, or `None` for no chart.
        is_steady: Whether its mean says everything. For other metrics the maximum and the last
            sample of a step are logged too.
        computed_from: The metric that must be sampled for it, if that is another one.
    """

    name: str
    unit: str
    origin: Origin
    meaning: str
    is_default: bool = True
    pace: Pace = Pace.EVERY_POLL
    chart: ChartGroup | None = None
    is_steady: bool = False
    computed_from: str | None = None

    @property
    def tags(self) -> dict[str, str]:
        """Every tag it is logged under, with a description for TensorBoard."""
        text = f"{self.meaning}, in {self.unit}"
        found = {self.name: text}
        if not self.is_steady:
            found[f"{self.name}_max"] = f"{text}: the maximum of the step's samples"
            found[f"{self.name}_last"] = f"{text}: the last of the step's samples"
        return found


_DRIVER, _ALLOCATOR = Origin.DRIVER, Origin.ALLOCATOR
_HOST, _TRAINING = Origin.HOST, Origin.TRAINING
_SLOW = Pace.ONCE_PER_SECOND
_WORK, _MEMORY, _TRAFFIC, _POWER, _TRAINING_CHARTS, _HOST_CHARTS = ChartGroup
METRICS = (
    Metric("gpu/utilization", "%", _DRIVER, "share of time in which a kernel ran", chart=_WORK),
    Metric(
        "gpu/memory_utilization", "%", _DRIVER, "share of time in which memory was read or written"
    ),
    Metric("gpu/memory_used", "MiB", _DRIVER, "memory in use by all processes", chart=_MEMORY),
    Metric("gpu/memory_free", "MiB", _DRIVER, "memory not in use", is_default=False),
    Metric(
        "gpu/memory_of_this_process",
        "MiB",
        _DRIVER,
        "memory used by this process",
        pace=_SLOW,
        chart=_MEMORY,
    ),
    Metric(
        "gpu/memory_of_others",
        "MiB",
        _DRIVER,
        "memory used by other processes",
        pace=_SLOW,
        chart=_MEMORY,
    ),
    Metric("gpu/power", "W", _DRIVER, "power draw", chart=_POWER),
    Metric(
        "gpu/power_limit",
        "W",
        _DRIVER,
        "power limit set in the driver",
        is_default=False,
        pace=_SLOW,
        is_steady=True,
    ),
    Metric("gpu/temperature", "°C", _DRIVER, "temperature of the chip", pace=_SLOW, chart=_POWER),
    Metric("gpu/sm_clock", "MHz", _DRIVER, "clock of the multiprocessors", chart=_POWER),
    Metric(
        "gpu/memory_clock", "MHz", _DRIVER, "clock of the memory", is_default=False, is_steady=True
    ),
    Metric(
        "gpu/throttled_power",
        "0 or 1",
        _DRIVER,
        "whether clocks are lowered because of power",
        is_steady=True,
    ),
    Metric(
        "gpu/throttled_heat",
        "0 or 1",
        _DRIVER,
        "whether clocks are lowered because of heat",
        is_steady=True,
    ),
    Metric(
        "gpu/throttled_other",
        "0 or 1",
        _DRIVER,
        "whether clocks are lowered for another reason",
        is_default=False,
        is_steady=True,
    ),
    Metric("gpu/pcie_sent", "MB/s", _DRIVER, "sent over PCIe", pace=_SLOW, chart=_TRAFFIC),
    Metric("gpu/pcie_received", "MB/s", _DRIVER, "received over PCIe", pace=_SLOW, chart=_TRAFFIC),
    Metric("gpu/nvlink_sent", "MB/s", _DRIVER, "sent over all NVLinks", pace=_SLOW, chart=_TRAFFIC),
    Metric(
        "gpu/nvlink_received",
        "MB/s",
        _DRIVER,
        "received over all NVLinks",
        pace=_SLOW,
        chart=_TRAFFIC,
    ),
    Metric(
        "gpu/ecc_corrected",
        "errors",
        _DRIVER,
        "corrected memory errors since the driver was loaded",
        pace=_SLOW,
        is_steady=True,
    ),
    Metric(
        "gpu/ecc_uncorrected",
        "errors",
        _DRIVER,
        "uncorrectable memory errors since the driver was loaded",
        pace=_SLOW,
        is_steady=True,
    ),
    Metric("gpu/energy", "J", _DRIVER, "energy used per step", pace=_SLOW, is_steady=True),
    Metric(
        "gpu/energy_per_sample",
        "J",
        _DRIVER,
        "energy used per sample",
        pace=_SLOW,
        chart=_POWER,
        is_steady=True,
        computed_from="gpu/energy",
    ),
    Metric(
        "gpu/sm_active",
        "%",
        _DRIVER,
        "share of multiprocessors that are active",
        is_default=False,
        chart=_WORK,
    ),
    Metric("gpu/sm_occupancy", "%", _DRIVER, "share of warps that are active", is_default=False),
    Metric(
        "gpu/tensor_active",
        "%",
        _DRIVER,
        "share of time in which tensor cores were active",
        is_default=False,
        chart=_WORK,
    ),
    Metric("gpu/dram_active", "%", _DRIVER, "share of memory bandwidth in use", is_default=False),
    Metric("allocator/used", "MiB", _ALLOCATOR, "memory held by tensors now", chart=_MEMORY),
    Metric(
        "allocator/peak",
        "MiB",
        _ALLOCATOR,
        "the most memory that tensors have held so far",
        chart=_MEMORY,
        is_steady=True,
    ),
    Metric(
        "host/cpu",
        "% of a core",
        _HOST,
        "processor time of this process",
        pace=_SLOW,
        chart=_HOST_CHARTS,
    ),
    Metric(
        "host/memory",
        "MiB",
        _HOST,
        "resident memory of this process",
        pace=_SLOW,
        chart=_HOST_CHARTS,
    ),
    Metric(
        "host/memory_free",
        "MiB",
        _HOST,
        "free memory of the whole machine",
        is_default=False,
        pace=_SLOW,
    ),
    Metric(
        "host/threads",
        "threads",
        _HOST,
        "threads of this process",
        is_default=False,
        pace=_SLOW,
        is_steady=True,
    ),
    Metric(
        "host/disk_read",
        "MB/s",
        _HOST,
        "read from disks by this process",
        pace=_SLOW,
        chart=_HOST_CHARTS,
    ),
    Metric("host/disk_written", "MB/s", _HOST, "written to disks by this process", pace=_SLOW),
    Metric("host/network_sent", "MB/s", _HOST, "sent by the whole machine", pace=_SLOW),
    Metric(
        "host/network_received",
        "MB/s",
        _HOST,
        "received by the whole machine",
        pace=_SLOW,
        chart=_HOST_CHARTS,
    ),
    Metric(
        "train/step_time",
        "ms",
        _TRAINING,
        "from the end of one step to the end of the next",
        chart=_TRAINING_CHARTS,
        is_steady=True,
    ),
    Metric(
        "train/samples_per_second",
        "1/s",
        _TRAINING,
        "samples trained",
        chart=_TRAINING_CHARTS,
        is_steady=True,
    ),
    Metric(
        "train/between_steps",
        "ms",
        _TRAINING,
        "from the end of one step to the start of the next",
        chart=_TRAINING_CHARTS,
        is_steady=True,
    ),
    Metric(
        "train/imbalance",
        "ratio",
        _TRAINING,
        "utilization of the busiest GPU, divided by the mean of all GPUs",
        chart=_WORK,
        is_steady=True,
        computed_from="gpu/utilization",
    ),
    Metric(
        "train/slowest_worker",
        "number",
        _TRAINING,
        "the worker that takes longest between steps",
        chart=_TRAINING_CHARTS,
        is_steady=True,
    ),
)
BY_NAME = {metric.name: metric for metric in METRICS}
DESCRIPTIONS = {tag: text for metric in METRICS for tag, text in metric.tags.items()}


def markdown() -> str:
    """The table for the docs."""
    lines = ["| metric | unit | source | meaning |", "|---|---|---|---|"]
    for metric in METRICS:
        more = "; read once per second" if metric.pace is Pace.ONCE_PER_SECOND else ""
        more += "" if metric.is_default else " (only on request)"
        source, meaning = metric.origin.value, metric.meaning + more
        lines.append(f"| `{metric.name}` | {metric.unit} | {source} | {meaning} |")
    return "\n".join(lines) + "\n"
