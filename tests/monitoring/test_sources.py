from keras_mgpu.monitoring.host_source import HostSource
from keras_mgpu.monitoring.nvml_source import NvmlSource
from keras_mgpu.monitoring.sources import open_sources


def kinds(metrics):
    sources = open_sources(metrics)
    for source in sources:
        source.close()
    return [type(source) for source in sources]


def test_only_what_the_metrics_need(driver, monkeypatch):
    driver.install(monkeypatch, num_gpus=1)
    assert kinds(["host/cpu"]) == [HostSource]
    assert kinds(["gpu/power", "host/cpu"]) == [NvmlSource, HostSource]
    assert kinds(["train/imbalance"]) == [NvmlSource]  # It is computed from utilization.
    assert kinds(["train/step_time"]) == []


def test_what_this_machine_does_not_have(driver, monkeypatch):
    driver.install(monkeypatch, visible="-1")
    assert kinds(["gpu/power", "allocator/used"]) == []
