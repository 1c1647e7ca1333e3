import pytest

from keras_mgpu.monitoring.catalogue import METRICS
from keras_mgpu.monitoring.metric_selection import tags_of
from keras_mgpu.monitoring.series import Summary
from keras_mgpu.monitoring.step_totals import StepTotals
from keras_mgpu.monitoring.step_values import values_of_step

BEFORE, NOW = StepTotals(0, 0.0), StepTotals(10, 2.0, num_samples=320, between_steps=0.5)


def summary(*values):
    found = Summary()
    for value in values:
        found.add(value)
    return found


def values(sums, metrics, now=NOW):
    return values_of_step(sums, BEFORE, now, tags_of(metrics))


def test_mean_maximum_and_last_of_what_changes():
    sums = {("gpu_0", "gpu/power"): summary(1.0, 5.0, 3.0)}
    expected = {"gpu/power": 3.0, "gpu/power_max": 5.0, "gpu/power_last": 3.0}
    assert values(sums, ["gpu/power"]) == {"gpu_0": expected}


def test_only_the_mean_of_what_is_steady():
    sums = {("host", "host/threads"): summary(4.0, 6.0)}
    assert values(sums, ["host/threads"]) == {"host": {"host/threads": 5.0}}


def test_training_and_imbalance():
    busy = {(f"gpu_{i}", "gpu/utilization"): summary(90.0 - 60 * i) for i in range(2)}
    found = values(busy, [metric.name for metric in METRICS])
    assert found["host"] == {
        "train/step_time": 200.0,
        "train/between_steps": 50.0,
        "train/samples_per_second": 160.0,
        "train/imbalance": 90 / 60,
    }


def test_there_is_no_imbalance_of_one_gpu_or_of_idle_ones():
    one = {("gpu_0", "gpu/utilization"): summary(90.0)}
    idle = {(f"gpu_{i}", "gpu/utilization"): summary(0.0) for i in range(2)}
    for sums in (one, idle):
        assert values(sums, ["train/imbalance"]) == {}


def test_energy_per_step_and_per_sample():
    sums = {("gpu_0", "gpu/energy"): summary(100.0, 60.0)}
    found = values(sums, ["gpu/energy", "gpu/energy_per_sample"])
    assert found == {"gpu_0": {"gpu/energy": 16.0, "gpu/energy_per_sample": 0.5}}
    without_samples = StepTotals(10, 2.0)
    assert values(sums, ["gpu/energy_per_sample"], without_samples) == {}


def test_what_others_are_computed_from_is_not_written():
    sums = {(f"gpu_{i}", "gpu/utilization"): summary(50.0) for i in range(2)}
    found = values(sums, ["train/imbalance"])
    assert found == {"host": {"train/imbalance": pytest.approx(1.0)}}
