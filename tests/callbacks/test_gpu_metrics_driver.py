"""What arrives in the event files is what the GPUs' curves said.

The GPUs are a stand-in for the driver's library with its real ABI. NVIDIA's own package calls it.
The test moves the clock, so numbers are exact however fast the machine is.
"""

import keras
import numpy as np
import pytest
from event_scalars import runs_in, scalars, steps, values
from small_fit import Takes, fit, ones

import keras_mgpu as km

STEP_SECONDS = 0.02


@pytest.fixture
def train(fake_clock, driver, monkeypatch, tmp_path):
    """Trains fifty steps per epoch, with `gpus` as the settings of the stand-in."""

    def train(*others, gpus=None, log_dir=tmp_path, seconds=STEP_SECONDS, epochs=1, **options):
        driver.install(monkeypatch, **(gpus or {}))
        callback = km.GPUMetrics(log_dir, **{"interval": 0.1, "timeline_every": None, **options})
        callbacks = [callback, *others, Takes(fake_clock, seconds)]
        fit(*callbacks, num_samples=200, epochs=epochs, validation_data=ones(8))

    return train


def messages(caplog, text):
    return [each.getMessage() for each in caplog.records if text in each.getMessage()]


def test_curves_arrive(train, tmp_path, caplog):
    caplog.set_level("INFO")
    train(metrics="all", epochs=2)
    assert runs_in(tmp_path) == [*(f"gpu_{index}" for index in range(8)), "host"]
    seconds = {e.step: e.value / 1000 for e in scalars(tmp_path, "host")["train/step_time"]}
    for index in (0, 1, 3, 4, 5, 6, 7):
        run = f"gpu_{index}"
        found = {tag: [e.value for e in each] for tag, each in scalars(tmp_path, run).items()}
        assert max(found["gpu/utilization_max"]) == 90 + index
        num_steps = np.diff([0, *steps(tmp_path, run, "gpu/utilization")])
        mean = np.average(found["gpu/utilization"], weights=num_steps)
        assert mean == pytest.approx(45 + index, abs=1)
        assert found["gpu/power"] == pytest.approx([100 + 10 * index] * len(found["gpu/power"]))
        assert set(found["gpu/temperature"]) == {40.0 + index}
        assert len(found["gpu/temperature"]) < len(found["gpu/memory_used"]) / 2  # Once a second.
        assert set(found["gpu/memory_used"]) == {1024.0 * (index + 1)}
        for tag in ("gpu/memory_of_this_process", "gpu/memory_of_others"):
            assert set(found[tag]) == {512.0 * (index + 1)}
        for tag, rate in {"gpu/nvlink_sent": 1.024, "gpu/nvlink_received": 2.048}.items():
            # Counter and clock are read one after the other. A pause in between moves a part
            # from one interval to the next.
            assert np.mean(found[tag]) == pytest.approx(rate * (index + 1), rel=0.1)
        assert set(found["gpu/ecc_corrected"]) == {3.0}
        energy = {event.step: event.value for event in scalars(tmp_path, run)["gpu/energy"]}
        watts = [joules / seconds[step] for step, joules in energy.items()]
        assert watts == pytest.approx([100 + 10 * index] * len(watts), rel=1e-2)
        per_sample = [4 * value for value in found["gpu/energy_per_sample"]]
        assert per_sample == pytest.approx(found["gpu/energy"])
    assert set(values(tmp_path, "gpu_0", "gpu/throttled_power")) == {1.0}
    assert set(values(tmp_path, "gpu_1", "gpu/throttled_heat")) == {1.0}
    assert set(values(tmp_path, "gpu_0", "gpu/tensor_active")) == {50.0}
    assert "gpu/tensor_active" not in scalars(tmp_path, "gpu_1")
    # The one that supports next to nothing logs the rest, with one log line.
    assert set(scalars(tmp_path, "gpu_2")) >= {"gpu/temperature", "gpu/memory_used"}
    assert "gpu/utilization" not in scalars(tmp_path, "gpu_2")
    assert len(messages(caplog, "gpu_2 does not support")) == 1


def test_steps_are_neither_lost_nor_doubled(train, tmp_path):
    train(metrics="all", gpus={"num_gpus": 1}, epochs=2)
    found = scalars(tmp_path, "gpu_0")["gpu/utilization"]
    written = [event.step for event in found]
    assert written == sorted(set(written))
    assert written[-1] == 100  # Two epochs of fifty batches.
    times = [event.wall_time for event in found]
    assert times == sorted(times)
    host = scalars(tmp_path, "host")
    assert [event.step for event in host["train/step_time"]][-1] == 100
    num_written = len(host["train/step_time"])
    step_times = [event.value for event in host["train/step_time"]]
    assert step_times == pytest.approx([1000 * STEP_SECONDS] * num_written, rel=1e-3)
    rates = [event.value for event in host["train/samples_per_second"]]
    assert rates == pytest.approx([4 / STEP_SECONDS] * num_written, rel=1e-3)
    assert all(event.value > 0 for event in host["host/memory"])


def test_only_the_gpus_of_this_job(train, tmp_path):
    """The stand-ins have different temperatures."""
    expected = {"2,0": [42, 40], "MIG-part-2": [44], "": []}
    for listed, temperatures in expected.items():
        folder = tmp_path / f"visible {listed}"
        train(gpus={"num_gpus": 5, "visible": listed}, metrics=["gpu/temperature"], log_dir=folder)
        runs = [name for name in runs_in(folder) if name.startswith("gpu")]
        found = [set(values(folder, name, "gpu/temperature")) for name in runs]
        assert found == [{float(each)} for each in temperatures], listed


def test_a_gpu_that_falls_off_the_bus(train, tmp_path, caplog):
    train(gpus={"num_gpus": 5, "lost": 0.4}, metrics=["gpu/memory_used", "gpu/power"])
    assert len(messages(caplog, "Stopped logging gpu_3: GPU is lost")) == 1
    last = {run: steps(tmp_path, run, "gpu/memory_used")[-1] for run in runs_in(tmp_path)}
    assert 20 <= last.pop("gpu_3") < 30  # The first step that is written after 0.4 seconds.
    assert set(last.values()) == {50}


def test_a_peak_that_the_driver_would_have_forgotten_by_the_next_poll(train, tmp_path):
    """Its ring goes back two seconds, so it is read every second, however long the interval."""
    train(gpus={"num_gpus": 1, "peak": 1.5}, interval=4.5, seconds=0.1)
    found = scalars(tmp_path, "gpu_0")
    assert found["gpu/utilization_max"][-1].step == 50
    assert max(event.value for event in found["gpu/utilization_max"]) == 100
    assert len(found["gpu/memory_used"]) <= 3  # This is read as seldom as asked for.
    # Energy is shared among steps all the same.
    seconds = {e.step: e.value / 1000 for e in scalars(tmp_path, "host")["train/step_time"]}
    watts = {event.step: event.value / seconds[event.step] for event in found["gpu/energy"]}
    assert watts.keys() == seconds.keys()
    assert list(watts.values()) == pytest.approx([100] * len(watts), rel=1e-2)


def test_metrics_that_are_computed_from_others(train, tmp_path):
    train(gpus={"num_gpus": 2}, metrics=["gpu/energy_per_sample", "train/imbalance"])
    assert list(scalars(tmp_path, "gpu_0")) == ["gpu/energy_per_sample"]
    assert set(scalars(tmp_path, "host")) == {"train/imbalance"}


def test_a_clock_that_is_set_back(train, tmp_path, fake_clock, driver):
    class SetsBack(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            if batch == 20:
                fake_clock.system_offset = -3600.0
                driver.set_clock(-3600.0)

    train(SetsBack(), gpus={"num_gpus": 1}, seconds=0.125)
    for tag in ("gpu/power", "gpu/utilization", "gpu/memory_used"):
        assert steps(tmp_path, "gpu_0", tag) == list(range(1, 51))
    num_steps = len(values(tmp_path, "host", "train/step_time"))
    assert values(tmp_path, "host", "train/step_time") == pytest.approx([125.0] * num_steps)
