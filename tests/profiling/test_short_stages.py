"""Stages that are too short for a GPU."""

import pytest
from profiled_split import make_split
from traces import add_call, make_trace

from keras_mgpu.blueprint.timeline import Costs
from keras_mgpu.monitoring.profile_log import PipelineLanes, lanes_of, log_trace
from keras_mgpu.monitoring.run_files import RunFiles
from keras_mgpu.profiling import short_stages
from keras_mgpu.profiling.short_stages import warn_of_short_stages
from keras_mgpu.system.cluster import Workers

GPUS = ["/GPU:0", "/GPU:1", "/GPU:2"]


@pytest.fixture(autouse=True)
def _nothing_was_said():
    short_stages._log_once.cache_clear()


def test_the_warning_names_them_and_is_issued_once(caplog):
    costs = Costs(forward=[0.0002, 0.004, 0.0009], backward=[0.01, 0.01, 0.01])
    for _ in range(2):
        warn_of_short_stages(costs, GPUS)
    (record,) = caplog.records
    assert "less than a millisecond in stage 0, 2." in record.message
    assert "fewer micro-batches" in record.message


def test_another_model_is_another_warning(caplog):
    warn_of_short_stages(Costs(forward=0.0002), GPUS)
    warn_of_short_stages(Costs(forward=[0.0002, 0.002, 0.002]), GPUS)
    assert len(caplog.records) == 2


def test_not_for_cpus_and_not_for_longer_stages(caplog):
    warn_of_short_stages(Costs(forward=0.0002), ["/CPU:0", "/CPU:1"])
    warn_of_short_stages(Costs(forward=0.002), GPUS)
    assert not caplog.records


def test_a_profiled_step_of_fit_tells(devices, tmp_path, caplog):
    """Here with devices that are said to be GPUs, and times that were made up."""
    lanes, trace = lanes_of(make_split(devices)), make_trace()
    for lane in lanes.schedule.lanes:
        for place, op in enumerate(lane):
            add_call(trace, op, begin=0.001 * place, end=0.001 * place + 0.0005)
    files = RunFiles(str(tmp_path), Workers(), [])
    on_gpus = PipelineLanes(lanes.schedule, lanes.runs, GPUS[:2])
    for given, num_warnings in ((lanes, 0), (on_gpus, 1), (on_gpus, 1)):
        assert log_trace(files, trace, step=3, seconds=0.01, lanes=given)
        assert len(caplog.records) == num_warnings
    files.close()
