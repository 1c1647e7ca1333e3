"""Runs that end badly, fork, or train together, in processes of their own.

NVIDIA's package finds the stand-in for the driver in the library path here, as it finds a real one.
"""

import os
import subprocess
import sys

import cluster
import pytest
from event_scalars import runs_in, scalars, steps


@pytest.fixture
def run(driver_folder, tmp_path):
    """Runs a task of metered.py."""

    def run(task):
        result = subprocess.run(
            [sys.executable, str(cluster.HERE / "metered.py"), task, str(tmp_path)],
            env={
                **{name: os.environ[name] for name in os.environ if "CUDA" not in name},
                "LD_LIBRARY_PATH": str(driver_folder),
                "KERAS_MGPU_TEST_GPUS": "1",
            },
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert result.returncode == 0, result.stderr[-3000:]

    return run


def test_a_fit_that_raises(run, tmp_path):
    run("raising")
    assert "gpu_metrics" not in (tmp_path / "threads.txt").read_text()
    assert steps(tmp_path, "gpu_0", "gpu/temperature")[-1] >= 20


def test_a_fork(run, tmp_path):
    run("forking")
    assert (tmp_path / "child.txt").read_text() == "7"
    assert steps(tmp_path, "gpu_0", "gpu/temperature")[-1] == 50


def test_a_loop_that_does_not_call_on_train_end(run, tmp_path):
    run("forgetful")
    assert steps(tmp_path, "gpu_0", "gpu/temperature")[-1] == 20


def test_every_worker_logs_its_own(tmp_path):
    cluster.finish(cluster.start_workers(2, "metrics", tmp_path))
    runs = ["worker_0_host", "worker_1_host"]
    assert runs_in(tmp_path) == [*runs, "worker_times"]
    for run in runs:
        assert steps(tmp_path, run, "train/step_time")[-1] == 40
    slowest = {e.step: e.value for e in scalars(tmp_path, runs[0])["train/slowest_worker"]}
    assert {worker for step, worker in slowest.items() if 6 < step <= 20} == {1.0}
    assert {worker for step, worker in slowest.items() if step > 30} == {0.0}
    assert "train/slowest_worker" not in scalars(tmp_path, runs[1])
