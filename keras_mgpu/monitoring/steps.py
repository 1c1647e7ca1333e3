"""Where training is: what the training thread tells, and what follows from two such moments."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Progress:
    """A moment of training.

    Args:
        step: Steps taken.
        time: When, in seconds since 1970.
        num_samples: Samples trained so far by this process.
        seconds_in_steps: Time spent inside of steps so far.
    """

    step: int
    time: float
    num_samples: int = 0
    seconds_in_steps: float = 0.0


def rates(before: Progress, now: Progress) -> dict[str, float]:
    """What training did between two moments."""
    num_steps, seconds = now.step - before.step, now.time - before.time
    if num_steps <= 0 or seconds <= 0:
        return {}
    in_steps = now.seconds_in_steps - before.seconds_in_steps
    found = {
        "train/step_time": 1000 * seconds / num_steps,
        "train/waiting": 100 * max(0.0, 1 - in_steps / seconds),
    }
    num_samples = now.num_samples - before.num_samples
    if num_samples > 0:
        found["train/samples_per_second"] = num_samples / seconds
    return found
