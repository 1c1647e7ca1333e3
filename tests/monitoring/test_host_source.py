import psutil
import pytest

from keras_mgpu.monitoring.host_source import HostSource
from keras_mgpu.monitoring.source import Due


def by_metric(samples):
    return {sample.metric: sample.value for sample in samples}


def test_this_process():
    source = HostSource(["host/memory", "host/threads", "host/memory_free", "host/cpu"])
    found = by_metric(source.sample(Due()))
    assert set(found) == {"host/memory", "host/threads", "host/memory_free", "host/cpu"}
    assert found["host/memory"] > 10
    assert found["host/threads"] >= 1


def test_once_per_second_only():
    source = HostSource(["host/memory"])
    assert source.sample(Due(kept=False)) == []
    assert source.sample(Due(momentary=False)) == []


def test_counters_become_rates(fake_clock, monkeypatch):
    counts = [
        {"bytes_sent": 0, "bytes_recv": 0},
        {"bytes_sent": 6_000_000, "bytes_recv": 2_000_000},
    ]

    def net_io_counters():
        return type("Counters", (), counts.pop(0))

    monkeypatch.setattr(psutil, "net_io_counters", net_io_counters)
    source = HostSource(["host/network_sent"])
    assert source.sample(Due()) == []
    fake_clock.advance(2.0)
    assert by_metric(source.sample(Due())) == {"host/network_sent": pytest.approx(3.0)}


def test_a_system_without_counters(monkeypatch):
    monkeypatch.delattr(psutil.Process, "io_counters")
    source = HostSource(["host/disk_read", "host/threads"])
    assert list(by_metric(source.sample(Due()))) == ["host/threads"]
