"""What is written for one step: of the samples of every device, and of training itself."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from keras_mgpu.monitoring.series import Key, Summary
from keras_mgpu.monitoring.steps import Progress, rates

HOST = "host"
UTILIZATION, ENERGY = "gpu/utilization", "gpu/energy"
# Numbers that hardly change from one sample to the next: their mean says everything.
STEADY = frozenset(
    [
        "gpu/power_limit",
        "gpu/memory_clock",
        "gpu/ecc_corrected",
        "gpu/ecc_uncorrected",
        "gpu/throttled_power",
        "gpu/throttled_heat",
        "gpu/throttled_other",
        "allocator/peak",
        "host/threads",
    ]
)
Rows = dict[str, dict[str, float]]


def make_rows(
    taken: Mapping[Key, Summary], before: Progress, now: Progress, metrics: Collection[str]
) -> Rows:
    """Numbers by tag, for each device.

    Args:
        taken: What was sampled since the step before.
        before: Where training was then.
        now: Where it is.
        metrics: Names of the metrics that are wanted.
    """
    rows: Rows = {}
    for (device, metric), summary in taken.items():
        row = rows.setdefault(device, {})
        if metric == ENERGY:
            row.update(_wanted(_energy(summary.total, before, now), metrics))
        elif metric in metrics:  # Others were sampled for the sake of these.
            row[metric] = summary.mean
            if metric not in STEADY:
                row[f"{metric}_max"] = summary.max
                row[f"{metric}_last"] = summary.last
    about_training = rates(before, now)
    busy = [summary.mean for (_, metric), summary in taken.items() if metric == UTILIZATION]
    if len(busy) > 1 and sum(busy) > 0:
        about_training["train/imbalance"] = max(busy) * len(busy) / sum(busy)
    rows.setdefault(HOST, {}).update(_wanted(about_training, metrics))
    return {device: row for device, row in rows.items() if row}


def _wanted(row: Mapping[str, float], metrics: Collection[str]) -> dict[str, float]:
    return {name: value for name, value in row.items() if name in metrics}


def _energy(joules: float, before: Progress, now: Progress) -> dict[str, float]:
    found = {}
    if now.step > before.step:
        found[ENERGY] = joules / (now.step - before.step)
    if now.num_samples > before.num_samples:
        found["gpu/energy_per_sample"] = joules / (now.num_samples - before.num_samples)
    return found
