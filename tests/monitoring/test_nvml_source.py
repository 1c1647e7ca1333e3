import sys

import pytest

from keras_mgpu.monitoring import nvml_source
from keras_mgpu.monitoring.series import Samples
from keras_mgpu.monitoring.source import Due


@pytest.fixture
def open_source(fake_clock, driver, monkeypatch):
    def open_source(*metrics, **settings):
        driver.install(monkeypatch, **settings)
        return nvml_source.open_source([], metrics)

    return open_source


def messages(caplog):
    return [record.getMessage() for record in caplog.records]


EVERYTHING = Due()


def found(source, due=EVERYTHING):
    return {(each.device, each.metric) for each in source.sample(due)}


def test_what_each_poll_reads(open_source, fake_clock):
    source = open_source(
        "gpu/memory_used", "gpu/temperature", "gpu/power", "gpu/energy", num_gpus=1
    )
    source.sample(Due())
    fake_clock.advance(1.0)
    assert {metric for _, metric in found(source, Due(kept=False))} == {"gpu/memory_used"}
    kept = {metric for _, metric in found(source, Due(momentary=False))}
    assert kept == {"gpu/power", "gpu/energy"}
    assert ("gpu_0", "gpu/temperature") in found(source)


def test_energy_is_an_amount_since_the_last_poll(open_source, fake_clock):
    source = open_source("gpu/energy", num_gpus=1)
    assert source.sample(Due()) == []
    begin = fake_clock.now()
    fake_clock.advance(2.0)
    (sample,) = source.sample(Due())
    assert (sample.since, sample.time) == (begin, fake_clock.now())
    assert sample.value == pytest.approx(200.0)


def test_traffic_is_a_rate(open_source, fake_clock):
    source = open_source("gpu/nvlink_sent", num_gpus=1)
    source.sample(Due())
    fake_clock.advance(2.0)
    (sample,) = source.sample(Due())
    assert sample.value == pytest.approx(1.024)


def test_a_gpu_that_is_lost(open_source, fake_clock, caplog):
    source = open_source("gpu/memory_used", num_gpus=4, lost=1.0)
    assert len(found(source)) == 4
    fake_clock.advance(2.0)
    assert {device for device, _ in found(source)} == {"gpu_0", "gpu_1", "gpu_2"}
    assert len(found(source)) == 3
    expected = "Stopped logging gpu_3: GPU is lost. Other GPUs are not affected."
    assert messages(caplog) == [expected]


def test_a_gpu_that_supports_little(open_source, fake_clock, caplog):
    caplog.set_level("INFO")
    metrics = ["gpu/memory_used", "gpu/sm_clock", "gpu/power"]
    source = open_source(*metrics, num_gpus=3)
    for _ in range(2):
        fake_clock.advance(1.0)
        assert ("gpu_2", "gpu/memory_used") in found(source)
    assert messages(caplog) == ["gpu_2 does not support: clocks, gpu/power."]


def test_a_part_of_a_gpu_has_no_ring_but_answers(open_source, fake_clock):
    source = open_source("gpu/power", num_gpus=5, visible="MIG-part-1")
    fake_clock.advance(1.0)
    (sample,) = source.sample(Due())
    assert not isinstance(sample, Samples)
    assert sample.value == 140.0


def test_without_gpus_of_this_job(open_source):
    assert open_source("gpu/power", visible="") is None


@pytest.mark.parametrize(("buses", "level"), [([], "INFO"), (["0000:01:00.0"], "WARNING")])
def test_without_the_package(monkeypatch, caplog, buses, level):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    caplog.set_level("INFO")
    assert nvml_source.open_source(buses, ["gpu/power"]) is None
    (record,) = caplog.records
    assert record.levelname == level
    assert 'pip install "keras-mgpu[nvidia]"' in record.getMessage()


def test_without_a_driver(monkeypatch, caplog):
    import pynvml

    def fail(*arguments):
        raise OSError

    caplog.set_level("INFO")
    monkeypatch.setattr(pynvml, "nvmlLib", None)
    monkeypatch.setattr(pynvml, "CDLL", fail)
    assert nvml_source.open_source([], ["gpu/power"]) is None
    assert messages(caplog) == ["No GPU metrics: NVML Shared Library Not Found."]
