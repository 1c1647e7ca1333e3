"""The numbers that are written for one step: from the samples of each device, and from training."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from keras_mgpu.monitoring.run_names import HOST_RUN
from keras_mgpu.monitoring.series import Key, Summary
from keras_mgpu.monitoring.step_totals import StepTotals, rates

UTILIZATION, ENERGY = "gpu/utilization", "gpu/energy"
ValuesByRun = dict[str, dict[str, float]]  # By run, then by tag.


def values_of_step(
    sums: Mapping[Key, Summary], before: StepTotals, now: StepTotals, tags: Collection[str]
) -> ValuesByRun:
    """Numbers by tag, for each run.

    Args:
        sums: What was sampled since the step before.
        before: The totals of that step.
        now: The totals of this step.
        tags: The tags to write. Other metrics are sampled if these are computed from them.
    """
    found: ValuesByRun = {HOST_RUN: {**rates(before, now), **_imbalance(sums)}}
    for (device, metric), summary in sums.items():
        is_energy = metric == ENERGY
        values = _energy(summary, before, now) if is_energy else _statistics(metric, summary)
        found.setdefault(device, {}).update(values)
    chosen = {
        run: {tag: value for tag, value in values.items() if tag in tags}
        for run, values in found.items()
    }
    return {run: values for run, values in chosen.items() if values}


def _statistics(metric: str, summary: Summary) -> dict[str, float]:
    return {metric: summary.mean, f"{metric}_max": summary.max, f"{metric}_last": summary.last}


def _energy(summary: Summary, before: StepTotals, now: StepTotals) -> dict[str, float]:
    found, joules = {}, summary.total
    if now.step > before.step:
        found[ENERGY] = joules / (now.step - before.step)
    if now.num_samples > before.num_samples:
        found["gpu/energy_per_sample"] = joules / (now.num_samples - before.num_samples)
    return found


def _imbalance(sums: Mapping[Key, Summary]) -> dict[str, float]:
    busy = [summary.mean for (_, metric), summary in sums.items() if metric == UTILIZATION]
    if len(busy) < 2 or sum(busy) <= 0:
        return {}
    return {"train/imbalance": max(busy) * len(busy) / sum(busy)}
