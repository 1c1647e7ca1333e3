"""The rings in which NVIDIA's driver keeps its newest samples, so that no peak is missed."""

from __future__ import annotations

import ctypes
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from keras_mgpu.monitoring import clock
from keras_mgpu.monitoring.series import Samples

_MICROSECONDS = 1_000_000


@dataclass(frozen=True)
class Ring:
    """What the driver keeps samples of.

    Args:
        metric: Name of the metric.
        kind: The driver's constant for it.
        factor: From the driver's unit to that of the metric.
    """

    metric: str
    kind: int
    factor: float = 1.0


class RingReader:
    """Reads the rings of one GPU: each time, what is new.

    Args:
        nvml: The driver's library, initialized.
        run: The run that the samples belong to.
        handle: The driver's handle of the GPU.
        rings: The rings to read.
    """

    def __init__(self, nvml: Any, run: str, handle: Any, rings: Sequence[Ring]) -> None:
        self._nvml, self._run, self._handle = nvml, run, handle
        self._rings = list(rings)
        begin = int(clock.system_now() * _MICROSECONDS)
        # The time of the newest sample that was read, by the system's clock.
        self._newest = {ring.metric: begin for ring in rings}
        self._read_at = clock.now()
        self._layouts = _layouts_of_samples(nvml)

    def read(self) -> Iterator[Samples | Ring]:
        """New samples; or a ring that this GPU does not have, once."""
        now = int(clock.system_now() * _MICROSECONDS)
        for ring in list(self._rings):
            self._notice_clock_set_back(ring, now)
            try:
                samples = self._new_samples(ring, now)
            except self._nvml.NVMLError_NotFound:
                continue  # Nothing new.
            except self._nvml.NVMLError_NotSupported:
                self._rings.remove(ring)
                yield ring
                continue
            if samples is not None:
                yield samples
        self._read_at = clock.now()

    def _notice_clock_set_back(self, ring: Ring, now: int) -> None:
        if self._newest[ring.metric] > now:
            seconds = clock.now() - self._read_at
            self._newest[ring.metric] = now - int(seconds * _MICROSECONDS)

    def _new_samples(self, ring: Ring, now: int) -> Samples | None:
        newest = self._newest[ring.metric]
        kind, samples = self._nvml.nvmlDeviceGetSamples(self._handle, ring.kind, newest)
        if not samples:
            return None
        # All samples lie in one array. To read them one by one would take microseconds each.
        found = np.frombuffer(samples[0]._b_base_, self._layouts[kind], len(samples))
        # If the clock was set back, older samples seem to lie in the future.
        found = found[(found["time"] > newest) & (found["time"] < now + _MICROSECONDS)]
        found = found[np.argsort(found["time"])]
        self._newest[ring.metric] = int(found["time"].max(initial=newest))
        times = clock.from_system(0.0) + found["time"] / _MICROSECONDS
        values = found["value"] * ring.factor
        return Samples(self._run, ring.metric, times.tolist(), values.tolist())


def rings_of(nvml: Any, metrics: Collection[str]) -> list[Ring]:
    """The rings of these metrics."""
    rings = [
        Ring("gpu/utilization", nvml.NVML_GPU_UTILIZATION_SAMPLES),
        Ring("gpu/memory_utilization", nvml.NVML_MEMORY_UTILIZATION_SAMPLES),
        Ring("gpu/power", nvml.NVML_TOTAL_POWER_SAMPLES, factor=1e-3),
    ]
    return [ring for ring in rings if ring.metric in metrics]


def _layouts_of_samples(nvml: Any) -> dict[int, np.dtype[Any]]:
    """For each type of value, how a sample lies in memory."""
    fields = {
        nvml.NVML_VALUE_TYPE_DOUBLE: "dVal",
        nvml.NVML_VALUE_TYPE_UNSIGNED_INT: "uiVal",
        nvml.NVML_VALUE_TYPE_UNSIGNED_LONG: "ulVal",
        nvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG: "ullVal",
        nvml.NVML_VALUE_TYPE_SIGNED_LONG_LONG: "sllVal",
    }
    sample, types = nvml.c_nvmlSample_t, dict(nvml.c_nvmlValue_t._fields_)
    return {
        kind: np.dtype(
            {
                "names": ["time", "value"],
                "formats": [np.dtype(dict(sample._fields_)["timeStamp"]), np.dtype(types[name])],
                "offsets": [sample.timeStamp.offset, sample.sampleValue.offset],
                "itemsize": ctypes.sizeof(sample),
            }
        )
        for kind, name in fields.items()
    }
