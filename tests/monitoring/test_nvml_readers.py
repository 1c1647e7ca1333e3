import pytest

from keras_mgpu.monitoring.catalogue import METRICS, Origin
from keras_mgpu.monitoring.nvml_readers import ActivityReader, NvmlReaders
from keras_mgpu.monitoring.nvml_rings import rings_of

ALL = [metric.name for metric in METRICS if metric.origin is Origin.DRIVER]


def test_every_metric_has_a_reader_or_a_ring(nvml):
    readers = NvmlReaders(nvml, ALL).of_one_gpu()
    answered = [name for reader in readers for name in reader.metrics]
    answered += [ring.metric for ring in rings_of(nvml, ALL)]
    assert len(answered) == len(set(answered))
    assert set(answered) == set(ALL) - {"gpu/energy_per_sample"}  # It is computed.


def test_each_answers_what_it_says(nvml):
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    for reader in NvmlReaders(nvml, ALL).of_one_gpu():
        assert set(reader.read(handle)) <= set(reader.metrics)


def test_only_what_is_asked_for(nvml):
    readers = NvmlReaders(nvml, ["gpu/sm_clock", "gpu/temperature"])
    assert [reader.name for reader in readers.of_one_gpu()] == ["temperature", "clocks"]
    assert [reader.is_slow for reader in readers.of_one_gpu()] == [True, False]
    clocks = readers.of_one_gpu()[1]
    assert list(clocks.read(nvml.nvmlDeviceGetHandleByIndex(0))) == ["gpu/sm_clock"]


def test_instead_of_a_ring(nvml):
    reader = NvmlReaders(nvml, ALL).instead_of_ring("gpu/power")
    assert reader.read(nvml.nvmlDeviceGetHandleByIndex(1)) == {"gpu/power": 110.0}


def test_activity_between_two_readings(nvml, fake_clock):
    reader, handle = ActivityReader(nvml), nvml.nvmlDeviceGetHandleByIndex(0)
    assert reader.read(handle) == {}
    fake_clock.advance(1.0)
    assert reader.read(handle)["gpu/tensor_active"] == 50.0
    with pytest.raises(nvml.NVMLError_NotSupported):
        ActivityReader(nvml).read(nvml.nvmlDeviceGetHandleByIndex(1))
