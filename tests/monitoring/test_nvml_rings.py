import pytest

from keras_mgpu.monitoring.nvml_rings import Ring, RingReader, rings_of

PERIOD = 0.02  # Between two samples of the stand-in.


def reader(nvml, index=1, metrics=("gpu/power",)):
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    return RingReader(nvml, f"gpu_{index}", handle, rings_of(nvml, metrics))


def test_each_sample_is_read_once(nvml, fake_clock):
    rings, times = reader(nvml), []
    assert list(rings.read()) == []  # Nothing is older than the reader.
    for _ in range(3):
        fake_clock.advance(0.5)
        (samples,) = rings.read()
        assert (samples.device, samples.metric) == ("gpu_1", "gpu/power")
        assert samples.values == [110.0] * len(samples.values)
        times += samples.times
        assert list(rings.read()) == []
    assert len(times) == 1.5 / PERIOD
    assert times == sorted(set(times))
    assert times[-1] == pytest.approx(fake_clock.now(), abs=PERIOD)


def test_a_clock_that_is_set_back(nvml, fake_clock, driver):
    rings = reader(nvml)
    fake_clock.advance(0.5)
    list(rings.read())
    fake_clock.advance(0.25)
    fake_clock.system_offset = -3600.0
    driver.set_clock(-3600.0)
    fake_clock.advance(0.25)
    (samples,) = rings.read()
    assert len(samples.times) == pytest.approx(0.5 / PERIOD, abs=1)
    assert samples.times[-1] == pytest.approx(fake_clock.now(), abs=PERIOD)  # By our own clock.


def test_a_gpu_without_rings(nvml):
    rings = reader(nvml, index=2, metrics=["gpu/power", "gpu/utilization"])
    found = list(rings.read())
    assert {type(each) for each in found} == {Ring}
    assert {each.metric for each in found} == {"gpu/power", "gpu/utilization"}
    assert list(rings.read()) == []
