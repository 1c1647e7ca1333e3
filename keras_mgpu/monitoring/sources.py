"""Which sources the chosen metrics need."""

from __future__ import annotations

from collections.abc import Collection

from keras_mgpu.monitoring import allocator_source, nvml_source
from keras_mgpu.monitoring.catalogue import Origin
from keras_mgpu.monitoring.host_source import HostSource
from keras_mgpu.monitoring.metric_selection import come_from, with_sources
from keras_mgpu.monitoring.source import Source
from keras_mgpu.system.devices import buses_of_gpus


def open_sources(metrics: Collection[str]) -> list[Source]:
    """Opens the sources of these metrics, as far as this machine has them."""
    sampled = with_sources(metrics)
    found: list[Source | None] = []
    if come_from(Origin.DRIVER, sampled):
        found.append(nvml_source.open_source(list(buses_of_gpus().values()), sampled))
    if come_from(Origin.ALLOCATOR, sampled):
        found.append(allocator_source.open_source(sampled))
    if come_from(Origin.HOST, sampled):
        found.append(HostSource(sampled))
    return [source for source in found if source is not None]
