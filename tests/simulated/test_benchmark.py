"""The benchmark of simulated steps, in small: devices work at the same time."""

import dataclasses
from pathlib import Path

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def test_two_devices_take_little_more_than_half_the_time(devices, monkeypatch):
    for folder in (BENCHMARKS, BENCHMARKS / "simulated"):
        monkeypatch.syspath_prepend(folder)
    from benchmark import Trial
    from small_models import MODELS

    trial = Trial(dataclasses.replace(MODELS["MLP"], time_scale=4), num_blocks=4)
    found = trial.pipeline(devices[:2], "1f1b", num_steps=1)
    assert found["seconds"] < 0.75 * trial.one_device(num_micro_batches=8)
