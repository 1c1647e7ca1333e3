import keras
import pytest
from event_scalars import runs_in, scalars, steps, values
from profiled_split import make_split
from traces import add_call, add_kernels, make_trace

from keras_mgpu.monitoring.profile_log import lanes_of, log_trace
from keras_mgpu.monitoring.run_files import RunFiles
from keras_mgpu.system.cluster import Workers


@pytest.fixture
def files(tmp_path):
    files = RunFiles(str(tmp_path), Workers(), [])
    yield files
    files.close()


def test_shares_of_each_gpu(files, tmp_path):
    trace = make_trace()
    add_kernels(trace, gpu=1, spans=[("matmul", 0, 3), ("ncclAllReduce", 5, 1)])
    assert log_trace(files, trace, step=7, seconds=10.0, lanes=None)
    files.close()
    assert runs_in(tmp_path) == ["gpu_1", "host"]
    found = {tag: events[0].value for tag, events in scalars(tmp_path, "gpu_1").items()}
    assert found == pytest.approx(
        {"profile/busy": 0.4, "profile/idle": 0.6, "profile/all_reduce": 0.1}
    )
    assert values(tmp_path, "host", "profile/input") == [0.0]
    assert steps(tmp_path, "gpu_1", "profile/busy") == [7]


def test_lanes_of_a_pipeline(devices):
    split = make_split(devices)
    lanes = lanes_of(split)
    assert (lanes.schedule, lanes.runs) == (split.schedule, ["cpu_0", "cpu_1"])
    assert lanes_of(keras.Sequential()) is None


def test_a_timeline(files, tmp_path, devices):
    lanes, trace = lanes_of(make_split(devices)), make_trace()
    for lane in lanes.schedule.lanes:
        for place, op in enumerate(lane):
            add_call(trace, op, begin=2.0 * place, end=2.0 * place + 1)
    assert log_trace(files, trace, step=3, seconds=20.0, lanes=lanes)
    files.close()
    assert runs_in(tmp_path) == ["cpu_0", "cpu_1", "host", "pipeline"]
    assert values(tmp_path, "cpu_0", "pipeline/busy") == pytest.approx([8 / 20])
    assert values(tmp_path, "pipeline", "pipeline/step_seconds") == [20.0]


def test_a_trace_that_misses_ops_is_worth_another_try(files, devices, caplog):
    caplog.set_level("INFO")
    lanes, trace = lanes_of(make_split(devices)), make_trace()
    add_call(trace, lanes.schedule.lanes[0][0], begin=0.0, end=1.0)
    assert not log_trace(files, trace, step=3, seconds=1.0, lanes=lanes)
    assert "a later step is profiled instead: The profiler missed 15 of 16 ops" in caplog.text


def test_nothing_to_see(files, devices, caplog):
    caplog.set_level("INFO")
    lanes = lanes_of(make_split(devices))
    assert log_trace(files, None, step=3, seconds=1.0, lanes=lanes)
    assert "No timeline of step 3: another profiler was running." in caplog.text
    assert log_trace(files, make_trace(), step=4, seconds=1.0, lanes=lanes)
    assert "No timeline of step 4: stages can be traced only with several" in caplog.text
