"""What training has done up to the end of a step, and the rates between two steps."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class StepTotals:
    """Totals at the end of a step. The training thread makes them, the monitor reads them.

    Args:
        step: Steps trained so far.
        time: When the step ended, in seconds since 1970.
        num_samples: Samples that this process has trained so far.
        between_steps: Seconds spent between steps so far.
    """

    step: int
    time: float
    num_samples: int = 0
    between_steps: float = 0.0


def rates(before: StepTotals, now: StepTotals) -> dict[str, float]:
    """Metrics of training itself, between two steps."""
    num_steps, seconds = now.step - before.step, now.time - before.time
    if num_steps <= 0 or seconds <= 0:
        return {}
    between = now.between_steps - before.between_steps
    found = {
        "train/step_time": 1000 * seconds / num_steps,
        "train/between_steps": 1000 * between / num_steps,
    }
    num_samples = now.num_samples - before.num_samples
    if num_samples > 0:
        found["train/samples_per_second"] = num_samples / seconds
    return found
