"""Samples and the steps they belong to."""

import numpy as np
import pytest

from keras_mgpu.monitoring.series import Sample, Samples, Series, Summary

POWER = "gpu_0", "gpu/power"


def series_of_steps(*ends):
    series = Series()
    for end in ends:
        series.end_step(end)
    return series


def test_samples_wait_for_their_step():
    series = series_of_steps(2.0, 2.5, 4.0)
    series.add([Sample(*POWER, t, t) for t in (1.0, 5.0, 2.0, 3.0)])
    first, second = series.take(2)
    assert first[POWER] == Summary(total=3.0, count=2, max=2.0, last=2.0)
    assert second == {}
    series.end_step(9.0)
    series.add([Sample(*POWER, 1.5, 7.0)])  # Too late for the first.
    third, fourth = series.take(2)
    assert third[POWER] == Summary(total=10.0, count=2, max=7.0, last=7.0)
    assert fourth[POWER] == Summary(total=5.0, count=1, max=5.0, last=5.0)


def test_kept_samples_go_to_the_same_steps_as_single_ones():
    rng = np.random.default_rng(0)
    times = sorted(rng.integers(0, 100, 200) / 10)
    values = list(rng.standard_normal(200))
    ends = (-1.0, 0.05, 2.0, 2.0, 5.5, 9.0)
    kept, single = series_of_steps(*ends), series_of_steps(*ends)
    kept.add([Samples(*POWER, times, values)])
    single.add([Sample(*POWER, *each) for each in zip(times, values)])
    for one, other in zip(kept.take_all(), single.take_all(), strict=True):
        assert one.keys() == other.keys()
        for key in one:
            assert vars(one[key]) == pytest.approx(vars(other[key]))


def test_the_last_step_gets_what_comes_after_it():
    series = series_of_steps(2.0, 4.0)
    series.add([Sample(*POWER, t, t) for t in (1.0, 3.0, 5.0, 4.5)])
    series.add([Sample("gpu_1", "gpu/power", 9.0, 1.0)])
    first, last = series.take_all()
    assert first[POWER] == Summary(total=1.0, count=1, max=1.0, last=1.0)
    assert last[POWER] == Summary(total=12.5, count=3, max=5.0, last=4.5)
    assert last["gpu_1", "gpu/power"].count == 1


def test_energy_is_shared_between_steps_by_time():
    energy = "gpu_0", "gpu/energy"
    series = series_of_steps(4.0, 5.0, 11.0)
    series.add([Sample(*energy, 10.0, 100.0, since=0.0), Sample(*energy, 12.0, 20.0, since=10.0)])
    assert [taken[energy].total for taken in series.take(3)] == pytest.approx([40, 10, 60])
    series.end_step(99.0)
    assert [taken[energy].total for taken in series.take(1)] == pytest.approx([10])
