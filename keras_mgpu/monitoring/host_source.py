"""Processor, memory, disk and network of the host."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping

import psutil

from keras_mgpu.monitoring import clock
from keras_mgpu.monitoring.run_names import HOST_RUN
from keras_mgpu.monitoring.series import Sample
from keras_mgpu.monitoring.source import Due

MIB = 1 << 20


class HostSource:
    """What this process uses of its machine.

    Args:
        metrics: Names of the metrics to sample.
    """

    def __init__(self, metrics: Collection[str]) -> None:
        self._metrics = metrics
        self._process = psutil.Process()
        readers: dict[str, Callable[[], float]] = {
            "host/cpu": lambda: self._process.cpu_percent(),
            "host/memory": lambda: self._process.memory_info().rss / MIB,
            "host/memory_free": lambda: psutil.virtual_memory().available / MIB,
            "host/threads": lambda: self._process.num_threads(),
        }
        self._readers = {name: read for name, read in readers.items() if name in metrics}
        counters: dict[Callable[[], Mapping[str, float]], tuple[str, ...]] = {
            self._disk: ("host/disk_read", "host/disk_written"),
            self._network: ("host/network_sent", "host/network_received"),
        }
        self._counters = [
            read for read, names in counters.items() if any(name in metrics for name in names)
        ]
        self._before: dict[str, tuple[float, float]] = {}
        if "host/cpu" in self._readers:
            self._process.cpu_percent()  # The first call has nothing to compare with.

    def sample(self, due: Due) -> list[Sample]:
        if not due.slow:  # The system counts processor time in hundredths of a second.
            return []
        now = clock.now()
        found = [Sample(HOST_RUN, name, now, float(read())) for name, read in self._readers.items()]
        return [*found, *self._rates(now)]

    def close(self) -> None:
        self._before.clear()

    def _rates(self, now: float) -> Iterator[Sample]:
        """How fast each counter has grown since the last poll."""
        for read in self._counters:
            try:
                counts = read()
            except (psutil.Error, AttributeError, OSError):
                continue  # Not every system has these counters.
            for name, count in counts.items():
                then, before = self._before.get(name, (now, count))
                self._before[name] = now, count
                if now > then and name in self._metrics:
                    yield Sample(HOST_RUN, name, now, (count - before) / (now - then))

    def _disk(self) -> Mapping[str, float]:
        counts = self._process.io_counters()
        return {
            "host/disk_read": counts.read_bytes / 1e6,
            "host/disk_written": counts.write_bytes / 1e6,
        }

    def _network(self) -> Mapping[str, float]:
        counts = psutil.net_io_counters()
        return {
            "host/network_sent": counts.bytes_sent / 1e6,
            "host/network_received": counts.bytes_recv / 1e6,
        }
