"""The cost of simulated GPUs, as asked for by name, by number and by environment."""

import costs
import pytest


def test_numbers_replace_those_of_a_gpu():
    found = costs.cost_of("A100", launch=1.0)
    assert found.launch == 1.0
    assert found.flops == costs.GPUS["A100"].flops > 0


def test_no_gpu_takes_no_time():
    assert costs.cost_of() == costs.Cost()
    assert set(costs.as_struct(costs.Cost())) == {0.0, 1.0}


def test_a_gpu_that_nobody_knows():
    with pytest.raises(ValueError, match=r"one of H100, A100.*gpu='B52'"):
        costs.cost_of("B52")


def test_the_environment(monkeypatch):
    assert costs.from_environment() == costs.Cost()
    monkeypatch.setenv("SIMGPU_GPU", "V100")
    monkeypatch.setenv("SIMGPU_TIME_SCALE", "100")
    monkeypatch.setenv("SIMGPU_HOST_BANDWIDTH", "1e9")
    expected = costs.cost_of("V100", time_scale=100.0, host_bandwidth=1e9)
    assert costs.from_environment() == expected
