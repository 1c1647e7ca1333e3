"""What arrives in the event files is what the GPUs' curves said.

The GPUs are a stand-in for the driver's library with its real ABI, loaded by NVIDIA's own package
in a process of its own.
"""

import ctypes
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import cluster
import keras
import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import keras_mgpu as km
from keras_mgpu.monitoring import catalogue, nvml_source, visible
from keras_mgpu.monitoring.rows import make_rows
from keras_mgpu.monitoring.series import Sample, Series
from keras_mgpu.monitoring.steps import Progress

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    return cluster.compile_driver("driver.c", tmp_path_factory.mktemp("driver"))


@pytest.fixture
def run(driver, tmp_path):
    """Runs a task of metered.py; returns its log."""

    def run(task, num_gpus=8, **environment):
        result = subprocess.run(
            [sys.executable, str(HERE / "metered.py"), task, str(tmp_path)],
            env={
                **{name: os.environ[name] for name in os.environ if "CUDA" not in name},
                "LD_LIBRARY_PATH": str(driver),
                "KERAS_MGPU_TEST_GPUS": str(num_gpus),
                **environment,
            },
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert result.returncode == 0, result.stderr[-3000:]
        return result.stderr

    return run


def scalars(folder, run):
    """Every scalar of a run: values by tag, in the order of steps."""
    events = EventAccumulator(str(folder / run), size_guidance={"tensors": 0, "scalars": 0})
    events.Reload()
    return {tag: events.Scalars(tag) for tag in events.Tags()["scalars"]}


def values(folder, run, tag):
    return [event.value for event in scalars(folder, run)[tag]]


def runs_in(folder):
    return sorted(path.name for path in folder.iterdir() if path.is_dir())


def test_curves_arrive(run, tmp_path):
    log = run("everything", num_gpus=8, KERAS_MGPU_TEST_LOST="100")
    assert runs_in(tmp_path) == [*(f"gpu_{index}" for index in range(8)), "host"]
    for index in (0, 1, 3, 4, 5, 6, 7):
        found = scalars(tmp_path, f"gpu_{index}")
        # A look sees five of the curve's ten samples, or all of them over several steps.
        assert max(event.value for event in found["gpu/utilization_max"]) == 90 + index
        mean = np.mean([event.value for event in found["gpu/utilization"]])
        assert mean == pytest.approx(45 + index, abs=8)
        assert {event.value for event in found["gpu/power"]} == {100.0 + 10 * index}
        assert {event.value for event in found["gpu/temperature"]} == {40.0 + index}
        assert {event.value for event in found["gpu/memory_used"]} == {1024.0 * (index + 1)}
        for tag in ("gpu/memory_of_this_process", "gpu/memory_of_others"):
            assert {event.value for event in found[tag]} == {512.0 * (index + 1)}
        sent = np.median([event.value for event in found["gpu/nvlink_sent"]])
        assert sent == pytest.approx(1.024 * (index + 1), rel=0.1)
        received = np.median([event.value for event in found["gpu/nvlink_received"]])
        assert received == pytest.approx(2.048 * (index + 1), rel=0.1)
        assert {event.value for event in found["gpu/ecc_corrected"]} == {3.0}
        # Steps take 20 ms and a little; so many joules a second.
        energy = np.median([event.value for event in found["gpu/energy"]])
        assert 0.02 * (100 + 10 * index) <= energy < 0.06 * (100 + 10 * index)
        per_sample = np.median([event.value for event in found["gpu/energy_per_sample"]])
        assert per_sample == pytest.approx(energy / 4, rel=0.01)
    assert {event.value for event in scalars(tmp_path, "gpu_0")["gpu/throttled_power"]} == {1.0}
    assert {event.value for event in scalars(tmp_path, "gpu_1")["gpu/throttled_heat"]} == {1.0}
    assert set(values(tmp_path, "gpu_0", "gpu/tensor_active")) == {50.0}
    assert "gpu/tensor_active" not in scalars(tmp_path, "gpu_1")
    # The one that supports next to nothing logs the rest, and one line says so.
    assert set(scalars(tmp_path, "gpu_2")) >= {"gpu/temperature", "gpu/memory_used"}
    assert "gpu/utilization" not in scalars(tmp_path, "gpu_2")
    assert len(re.findall("gpu_2 does not tell", log)) == 1


def test_steps_are_neither_lost_nor_doubled(run, tmp_path):
    run("everything", num_gpus=1)
    found = scalars(tmp_path, "gpu_0")["gpu/utilization"]
    steps = [event.step for event in found]
    assert steps == sorted(set(steps))
    assert steps[-1] == 100  # Two epochs of fifty batches.
    times = [event.wall_time for event in found]
    assert times == sorted(times)
    host = scalars(tmp_path, "host")
    assert [event.step for event in host["train/step_time"]][-1] == 100
    assert np.median([e.value for e in host["train/step_time"]]) == pytest.approx(21, abs=8)
    rate = np.median([event.value for event in host["train/samples_per_second"]])
    assert rate == pytest.approx(4 / 0.022, rel=0.4)
    assert all(event.value > 0 for event in host["host/memory"])


@pytest.mark.parametrize(
    ("listed", "temperatures"),
    [
        (None, [40, 41, 42]),
        ("1", [41]),
        ("2,0", [42, 40]),
        ("GPU-00000aa1", [41]),
        ("1,-1,2", [41]),
        ("", []),
        ("MIG-part-2", [44]),
        ("9", []),
    ],
)
def test_only_the_gpus_of_this_job(run, tmp_path, listed, temperatures):
    environment = {} if listed is None else {"CUDA_VISIBLE_DEVICES": listed}
    num_gpus = 5 if listed and "MIG" in listed else 3
    run("visible", num_gpus, **environment)
    runs = [name for name in runs_in(tmp_path) if name.startswith("gpu")]
    found = [set(values(tmp_path, name, "gpu/temperature")) for name in runs]
    assert found == [{float(each)} for each in temperatures]


def test_a_gpu_that_falls_off_the_bus(run, tmp_path):
    log = run("lost", num_gpus=5, KERAS_MGPU_TEST_LOST="0.4")
    assert len(re.findall("gpu_3 is lost to the logs: GPU is lost", log)) == 1
    last = {
        name: scalars(tmp_path, name)["gpu/temperature"][-1].step
        for name in runs_in(tmp_path)
        if name.startswith("gpu")
    }
    assert last["gpu_3"] < 50
    assert last["gpu_0"] == last["gpu_4"] == 50


def test_a_fit_that_raises(run, tmp_path):
    run("raising", num_gpus=1)
    assert "gpu_metrics" not in (tmp_path / "threads.txt").read_text()
    assert scalars(tmp_path, "gpu_0")["gpu/temperature"][-1].step >= 15


def test_a_fork(run, tmp_path):
    run("forking", num_gpus=1)
    assert (tmp_path / "child.txt").read_text() == "7"
    assert scalars(tmp_path, "gpu_0")["gpu/temperature"][-1].step == 50


def test_a_loop_that_forgets_to_end(run, tmp_path):
    run("forgetful", num_gpus=1)
    assert scalars(tmp_path, "gpu_0")["gpu/temperature"][-1].step == 20


def test_without_a_driver(tmp_path, caplog):
    caplog.set_level("INFO")
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
    model.compile("sgd", "mse")
    x, y = np.ones((64, 4)), np.ones((64, 2))
    callback = km.GPUMetrics(tmp_path, interval=0.05)
    model.fit(x, y, batch_size=4, verbose=0, callbacks=[callback])
    assert len([r for r in caplog.records if "No metrics of GPUs" in r.getMessage()]) == 1
    assert set(scalars(tmp_path, "host")) >= {"train/step_time", "host/memory"}


def fit(callback, num_samples=64, **options):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
    model.compile("sgd", "mse", **options)
    x, y = np.ones((num_samples, 4)), np.ones((num_samples, 2))
    model.fit(x, y, batch_size=4, epochs=2, verbose=0, callbacks=[callback])


def test_several_steps_in_one_execution(tmp_path):
    fit(km.GPUMetrics(tmp_path, interval=0.02), steps_per_execution=8)
    found = scalars(tmp_path, "host")["train/step_time"]
    assert found[-1].step == 32
    assert all(event.step % 8 == 0 for event in found)


@pytest.mark.parametrize(("freq", "steps"), [("epoch", {16, 32}), (5, {5, 10, 15, 16, 20, 30, 32})])
def test_steps_that_are_written(tmp_path, freq, steps):
    fit(km.GPUMetrics(tmp_path, interval=0.001, update_freq=freq))
    found = {event.step for event in scalars(tmp_path, "host")["train/step_time"]}
    assert found <= steps | {25}
    assert 32 in found


def test_charts_are_grouped(tmp_path):
    fit(km.GPUMetrics(tmp_path, interval=0.05))
    events = EventAccumulator(str(tmp_path / "host")).Reload()
    content = events.Tensors("custom_scalars__config__")[0].tensor_proto.string_val[0]
    assert b"Power and heat" in content
    assert b"train/samples_per_second" in content


def test_samples_are_counted_with_validation_and_a_last_smaller_batch(tmp_path):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
    model.compile("sgd", "mse")
    x, y = np.ones((10, 4)), np.ones((10, 2))
    callback = km.GPUMetrics(tmp_path)
    model.fit(x, y, batch_size=4, epochs=3, verbose=0, validation_data=(x, y), callbacks=[callback])
    assert callback._num_samples == 30


def test_a_log_dir_that_cannot_be_written(tmp_path):
    directory = tmp_path / "read-only"
    directory.mkdir()
    if os.geteuid() == 0:  # Who may do anything is stopped only where nobody may.
        directory = "/proc/sys/logs"
    else:
        directory.chmod(0o500)
    with pytest.raises(PermissionError, match="Cannot write to"):
        fit(km.GPUMetrics(directory))


def test_every_worker_logs_its_own(tmp_path):
    cluster.finish(cluster.start_workers(2, "metrics", tmp_path))
    assert runs_in(tmp_path) == ["worker_0_host", "worker_1_host"]
    for run in runs_in(tmp_path):
        assert scalars(tmp_path, run)["train/step_time"][-1].step == 20


def test_real_symbols_only():
    """Every name of the driver's library that is used is one of NVIDIA's package."""
    import pynvml

    for module in (nvml_source, visible):
        used = set(re.findall(r"\bnvml\.(\w+)", inspect.getsource(module)))
        used |= set(re.findall(r"\b_nvml\.(\w+)", inspect.getsource(module)))
        used |= set(nvml_source._GPM.values())
        assert len(used) > 3
        assert [name for name in sorted(used) if not hasattr(pynvml, name)] == []
    source = (HERE / "nvml" / "driver.c").read_text()
    functions = set(re.findall(r"^(?:nvmlReturn_t|const char \*) ?(nvml\w+)\(", source, re.M))
    text = inspect.getsource(pynvml)
    assert [name for name in sorted(functions) if f'"{name}"' not in text] == []
    assert len(functions) > 20


def test_structures_are_the_drivers(tmp_path):
    """The stand-in's structures are as large as those that NVIDIA's package hands over."""
    import pynvml

    sizes = {
        "sample_t": pynvml.c_nvmlSample_t,
        "memory_t": pynvml.c_nvmlMemory_t,
        "process_t": pynvml.c_nvmlProcessInfo_v2_t,
        "field_t": pynvml.c_nvmlFieldValue_t,
        "gpm_support_t": pynvml.c_nvmlGpmSupport_t,
        "gpm_metric_t": pynvml.c_nvmlGpmMetric_t,
        "utilization_t": pynvml.c_nvmlUtilization_t,
    }
    printing = "\n".join(f'printf("{name} %zu\\n", sizeof({name}));' for name in sizes)
    source, program = tmp_path / "sizes.c", tmp_path / "sizes"
    include = f'#include "{HERE / "nvml" / "driver.c"}"'
    source.write_text(f"{include}\nint main(void) {{ {printing} return 0; }}\n")
    subprocess.run(["cc", str(source), "-o", str(program)], check=True)
    output = subprocess.run([str(program)], capture_output=True, text=True, check=True).stdout
    found = dict(line.split() for line in output.splitlines())
    assert {name: int(size) for name, size in found.items()} == {
        name: ctypes.sizeof(structure) for name, structure in sizes.items()
    }


# The parts by themselves.


def test_samples_wait_for_their_step():
    series = Series()
    series.add([Sample("gpu_0", "gpu/power", t, t) for t in (1.0, 2.0, 3.0)])
    (summary,) = series.take(2.0).values()
    assert (summary.mean, summary.max, summary.last, summary.count) == (1.5, 2.0, 2.0, 2)
    (summary,) = series.take(9.0).values()
    assert (summary.mean, summary.count) == (3.0, 1)
    assert series.take(99.0) == {}


def test_imbalance_and_rates():
    series = Series()
    series.add([Sample(f"gpu_{i}", "gpu/utilization", 0.0, 90.0 - 60 * i) for i in range(2)])
    rows = make_rows(
        series.take(1.0),
        Progress(0, 0.0),
        Progress(10, 2.0, num_samples=320, seconds_in_steps=1.5),
        {metric.name for metric in catalogue.METRICS},
    )
    assert rows["host"] == {
        "train/step_time": 200.0,
        "train/waiting": 25.0,
        "train/samples_per_second": 160.0,
        "train/imbalance": 90 / 60,
    }


def test_the_docs_are_made_from_the_table():
    docs = (HERE.parent / "docs" / "metrics.md").read_text(encoding="utf-8")
    assert catalogue.markdown() in docs


# Bad input.


def test_bad_input(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="`log_dir` is a file"):
        km.GPUMetrics(tmp_path / "file")
    for interval in (0, -1, float("nan"), float("inf"), "1", True):
        with pytest.raises(ValueError, match="`interval` must be"):
            km.GPUMetrics(tmp_path, interval=interval)
    for freq in (0, "step", 1.5, True):
        with pytest.raises(ValueError, match="`update_freq` must be"):
            km.GPUMetrics(tmp_path, update_freq=freq)
    with pytest.raises(ValueError, match="`timeline_every` must be"):
        km.GPUMetrics(tmp_path, timeline_every=0)
    with pytest.raises(ValueError, match="Did you mean 'gpu/utilization'"):
        km.GPUMetrics(tmp_path, metrics=["gpu/utilisation"])
    with pytest.raises(ValueError, match="Did you mean 'gpu/temperature'"):
        km.GPUMetrics(tmp_path, metrics="temperature")


def test_two_of_them(tmp_path):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
    model.compile("sgd", "mse")
    two = [km.GPUMetrics(tmp_path / "a"), km.GPUMetrics(tmp_path / "b")]
    with pytest.raises(ValueError, match="two GPUMetrics in one run"):
        model.fit(np.ones((4, 4)), np.ones((4, 2)), verbose=0, callbacks=two)
