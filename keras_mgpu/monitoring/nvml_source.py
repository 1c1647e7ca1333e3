"""NVIDIA's GPUs, as the driver's own library (NVML) tells of them.

Utilization and power come from the driver's ring of samples, so that a peak between two looks is
not missed. The package `nvidia-ml-py` (the extra `nvidia`) is loaded only when it is needed.
"""

from __future__ import annotations

import ctypes
import logging
import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from keras_mgpu.monitoring import clock, visible
from keras_mgpu.monitoring.catalogue import SLOW
from keras_mgpu.monitoring.series import Sample, Samples
from keras_mgpu.monitoring.source import BREAK_SECONDS, Due

logger = logging.getLogger("keras_mgpu")
MIB = 1 << 20
Reader = Callable[[Any], Mapping[str, float]]


def open_source(
    buses: Sequence[str], metrics: Collection[str], prefix: str = "gpu"
) -> NvmlSource | None:
    """The GPUs of this job, or `None` if there are none or no driver; one line says why."""
    try:
        import pynvml
    except ImportError:
        _say(buses, 'No metrics of GPUs: `pip install "keras-mgpu[nvidia]"` brings them.')
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        _say(buses, f"No metrics of GPUs: {error}.")
        return None
    try:
        handles = visible.handles(pynvml, buses)
    except pynvml.NVMLError as error:
        logger.warning("No metrics of GPUs: %s.", error)
        handles = []
    if not handles:
        pynvml.nvmlShutdown()
        return None
    names = [f"{prefix}_{index}" for index in range(len(handles))]
    return NvmlSource(pynvml, dict(zip(names, handles)), metrics)


def _forms_of_samples(nvml: Any) -> dict[int, np.dtype[Any]]:
    """For each type of value, how a sample of a ring lies in memory."""
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


def _say(buses: Sequence[str], what: str) -> None:
    """Where there are no GPUs, nobody misses them."""
    logger.log(logging.WARNING if buses else logging.INFO, what)


@dataclass
class _Gpu:
    """One GPU and what is known of it.

    Args:
        name: In the logs.
        handle: The driver's.
        readers: What it can be asked for.
        seen: Of each ring, the time of the newest sample that was read.
        counters: Of each counter, when it was read and what it was.
    """

    name: str
    handle: Any
    readers: dict[str, Reader]
    seen: dict[str, int] = field(default_factory=dict)
    counters: dict[str, tuple[float, float]] = field(default_factory=dict)


class NvmlSource:
    """Samples GPUs.

    Args:
        nvml: The driver's library, begun.
        handles: The GPUs, by their names in the logs.
        metrics: Names of the metrics that are wanted.
    """

    def __init__(self, nvml: Any, handles: Mapping[str, Any], metrics: Collection[str]) -> None:
        self._nvml, self._metrics = nvml, set(metrics)
        self._pid = os.getpid()
        self._slow_readers: set[str] = set()
        self._gpus = [_Gpu(name, handle, self._readers()) for name, handle in handles.items()]
        rings = {
            "gpu/utilization": (nvml.NVML_GPU_UTILIZATION_SAMPLES, 1.0),
            "gpu/memory_utilization": (nvml.NVML_MEMORY_UTILIZATION_SAMPLES, 1.0),
            "gpu/power": (nvml.NVML_TOTAL_POWER_SAMPLES, 1e-3),
        }
        self._rings = {name: ring for name, ring in rings.items() if name in self._metrics}
        self._forms = _forms_of_samples(nvml)
        self._missing: dict[str, list[str]] = {}
        begin = time.time()
        self._rings_read = clock.now()
        for gpu in self._gpus:
            gpu.seen = dict.fromkeys(self._rings, int(begin * 1e6))

    @property
    def devices(self) -> Sequence[str]:
        return [gpu.name for gpu in self._gpus]

    def sample(self, due: Due) -> list[Sample | Samples]:
        found: list[Sample | Samples] = []
        for gpu in list(self._gpus):
            try:
                if due.kept:
                    found += self._ring_samples(gpu)
                found += self._polled(gpu, due)
            except self._nvml.NVMLError as error:
                self._gpus.remove(gpu)
                logger.warning("%s is lost to the logs: %s. The others go on.", gpu.name, error)
            if due.kept:
                time.sleep(BREAK_SECONDS)
        if due.kept:
            self._rings_read = clock.now()
        self._say_what_is_missing()
        return found

    def close(self) -> None:
        try:
            self._nvml.nvmlShutdown()
        except self._nvml.NVMLError:
            logger.debug("The driver's library did not close.", exc_info=True)

    # The driver's rings.

    def _ring_samples(self, gpu: _Gpu) -> Iterator[Samples]:
        now = int(time.time() * 1e6)
        offset = clock.from_system(0.0)
        for name in list(gpu.seen):
            kind_of_ring, factor = self._rings[name]
            if gpu.seen[name] > now:  # The system's clock was set back.
                gpu.seen[name] = now - int((clock.now() - self._rings_read) * 1e6)
            try:
                kind, samples = self._nvml.nvmlDeviceGetSamples(
                    gpu.handle, kind_of_ring, gpu.seen[name]
                )
            except self._nvml.NVMLError_NotFound:
                continue  # Nothing new.
            except self._nvml.NVMLError_NotSupported:
                del gpu.seen[name]
                gpu.readers[name] = self._instead_of_ring(name)
                continue
            if not samples:
                continue
            # All of them lie in one array: to look into each would take microseconds.
            ring = np.frombuffer(samples[0]._b_base_, self._forms[kind], len(samples))
            # Of a clock that was set back, older samples seem to lie ahead.
            is_new = (ring["time"] > gpu.seen[name]) & (ring["time"] < now + 1_000_000)
            ring = ring[is_new]
            ring = ring[np.argsort(ring["time"])]
            gpu.seen[name] = int(ring["time"].max(initial=gpu.seen[name]))
            times, values = offset + ring["time"] / 1e6, ring["value"] * factor
            yield Samples(gpu.name, name, times.tolist(), values.tolist())

    def _instead_of_ring(self, name: str) -> Reader:
        nvml = self._nvml
        if name == "gpu/power":
            return lambda gpu: {name: nvml.nvmlDeviceGetPowerUsage(gpu) / 1000}
        attribute = "gpu" if name == "gpu/utilization" else "memory"
        return lambda gpu: {name: getattr(nvml.nvmlDeviceGetUtilizationRates(gpu), attribute)}

    # What is asked for at each look.

    def _polled(self, gpu: _Gpu, due: Due) -> list[Sample]:
        found = []
        for name, read in list(gpu.readers.items()):
            # Energy is counted for us; a step that is written must have its share.
            is_due = due.kept if name == "energy" else due.momentary
            if not is_due or (name in self._slow_readers and not due.kept):
                continue
            try:
                values, now = read(gpu.handle), clock.now()
            except (
                self._nvml.NVMLError_NotSupported,
                self._nvml.NVMLError_FunctionNotFound,
                self._nvml.NVMLError_NoPermission,
                self._nvml.NVMLError_InvalidArgument,
            ):
                del gpu.readers[name]
                self._missing.setdefault(gpu.name, []).append(name)
                continue
            for metric, value in values.items():
                if metric in _COUNTERS:
                    found += _counted(gpu, metric, now, value)
                elif metric in self._metrics:
                    found.append(Sample(gpu.name, metric, now, float(value)))
        return found

    def _readers(self) -> dict[str, Reader]:
        """What can be asked, by the metric that it is asked for first."""
        readers: dict[str, tuple[tuple[str, ...], Reader]] = {
            "memory": (("gpu/memory_used", "gpu/memory_free"), self._memory),
            "processes": (
                ("gpu/memory_of_this_process", "gpu/memory_of_others"),
                self._memory_of_processes,
            ),
            "power limit": (("gpu/power_limit",), self._power_limit),
            "temperature": (("gpu/temperature",), self._temperature),
            "clocks": (("gpu/sm_clock", "gpu/memory_clock"), self._clocks),
            "throttling": (
                ("gpu/throttled_power", "gpu/throttled_heat", "gpu/throttled_other"),
                self._throttling,
            ),
            "PCIe traffic": (("gpu/pcie_sent", "gpu/pcie_received"), self._pcie),
            "NVLink traffic": (("gpu/nvlink_sent", "gpu/nvlink_received"), self._nvlink),
            "ECC errors": (("gpu/ecc_corrected", "gpu/ecc_uncorrected"), self._ecc),
            "energy": (("gpu/energy", "gpu/energy_per_sample"), self._energy),
            "activity counters": (tuple(_GPM), _Activity(self._nvml).read),
        }
        asked = {
            what: read
            for what, (metrics, read) in readers.items()
            if self._metrics.intersection(metrics)
        }
        self._slow_readers = {what for what in asked if SLOW.issuperset(readers[what][0])}
        return asked

    def _memory(self, gpu: Any) -> Mapping[str, float]:
        info = self._nvml.nvmlDeviceGetMemoryInfo(gpu)
        return {"gpu/memory_used": info.used / MIB, "gpu/memory_free": info.free / MIB}

    def _memory_of_processes(self, gpu: Any) -> Mapping[str, float]:
        mine = others = 0.0
        for process in self._nvml.nvmlDeviceGetComputeRunningProcesses(gpu):
            held = (process.usedGpuMemory or 0) / MIB
            if process.pid == self._pid:
                mine += held
            else:
                others += held
        return {"gpu/memory_of_this_process": mine, "gpu/memory_of_others": others}

    def _power_limit(self, gpu: Any) -> Mapping[str, float]:
        return {"gpu/power_limit": self._nvml.nvmlDeviceGetEnforcedPowerLimit(gpu) / 1000}

    def _temperature(self, gpu: Any) -> Mapping[str, float]:
        nvml = self._nvml
        return {"gpu/temperature": nvml.nvmlDeviceGetTemperature(gpu, nvml.NVML_TEMPERATURE_GPU)}

    def _clocks(self, gpu: Any) -> Mapping[str, float]:
        nvml = self._nvml
        clocks = {"gpu/sm_clock": nvml.NVML_CLOCK_SM, "gpu/memory_clock": nvml.NVML_CLOCK_MEM}
        return {
            name: nvml.nvmlDeviceGetClockInfo(gpu, clock)
            for name, clock in clocks.items()
            if name in self._metrics
        }

    def _throttling(self, gpu: Any) -> Mapping[str, float]:
        nvml = self._nvml
        reasons = nvml.nvmlDeviceGetCurrentClocksEventReasons(gpu)
        power = (
            nvml.nvmlClocksEventReasonSwPowerCap | nvml.nvmlClocksEventReasonHwPowerBrakeSlowdown
        )
        heat = (
            nvml.nvmlClocksEventReasonSwThermalSlowdown
            | nvml.nvmlClocksEventReasonHwThermalSlowdown
        )
        harmless = nvml.nvmlClocksEventReasonGpuIdle
        return {
            "gpu/throttled_power": float(bool(reasons & power)),
            "gpu/throttled_heat": float(bool(reasons & heat)),
            "gpu/throttled_other": float(bool(reasons & ~(power | heat | harmless))),
        }

    def _pcie(self, gpu: Any) -> Mapping[str, float]:
        nvml = self._nvml
        sent = nvml.nvmlDeviceGetPcieThroughput(gpu, nvml.NVML_PCIE_UTIL_TX_BYTES)
        received = nvml.nvmlDeviceGetPcieThroughput(gpu, nvml.NVML_PCIE_UTIL_RX_BYTES)
        return {"gpu/pcie_sent": sent / 1000, "gpu/pcie_received": received / 1000}

    def _nvlink(self, gpu: Any) -> Mapping[str, float]:
        """Kibibytes since the driver was loaded, over all links together."""
        nvml = self._nvml
        every_link = 0xFFFFFFFF
        fields = [
            (nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, every_link),
            (nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX, every_link),
        ]
        sent, received = nvml.nvmlDeviceGetFieldValues(gpu, fields)
        for each in (sent, received):
            if each.nvmlReturn != nvml.NVML_SUCCESS:
                raise nvml.NVMLError(each.nvmlReturn)
        kib = 1024 / 1e6
        return {
            "gpu/nvlink_sent": sent.value.ullVal * kib,
            "gpu/nvlink_received": received.value.ullVal * kib,
        }

    def _ecc(self, gpu: Any) -> Mapping[str, float]:
        nvml = self._nvml
        kinds = {
            "gpu/ecc_corrected": nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED,
            "gpu/ecc_uncorrected": nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
        }
        since = nvml.NVML_VOLATILE_ECC
        return {
            name: nvml.nvmlDeviceGetTotalEccErrors(gpu, kind, since) for name, kind in kinds.items()
        }

    def _energy(self, gpu: Any) -> Mapping[str, float]:
        return {"gpu/energy": self._nvml.nvmlDeviceGetTotalEnergyConsumption(gpu) / 1000}

    def _say_what_is_missing(self) -> None:
        for name, missing in self._missing.items():
            logger.info("%s does not tell: %s.", name, ", ".join(missing))
        self._missing = {}


_COUNTERS = frozenset(["gpu/nvlink_sent", "gpu/nvlink_received", "gpu/energy"])


def _counted(gpu: _Gpu, metric: str, now: float, count: float) -> list[Sample]:
    """What a counter has counted since it was read before: energy, or traffic a second."""
    then, before = gpu.counters.get(metric, (now, count))
    gpu.counters[metric] = now, count
    if now <= then:
        return []
    if metric == "gpu/energy":
        return [Sample(gpu.name, metric, now, count - before, since=then)]
    return [Sample(gpu.name, metric, now, (count - before) / (now - then))]


_GPM = {
    "gpu/sm_active": "NVML_GPM_METRIC_SM_UTIL",
    "gpu/sm_occupancy": "NVML_GPM_METRIC_SM_OCCUPANCY",
    "gpu/tensor_active": "NVML_GPM_METRIC_ANY_TENSOR_UTIL",
    "gpu/dram_active": "NVML_GPM_METRIC_DRAM_BW_UTIL",
}


class _Activity:
    """Counters of the newest GPUs: two readings, and what happened between them."""

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        self._before: Any = None

    def read(self, gpu: Any) -> Mapping[str, float]:
        nvml = self._nvml
        if self._before is None and not nvml.nvmlGpmQueryDeviceSupport(gpu).isSupportedDevice:
            raise nvml.NVMLError(nvml.NVML_ERROR_NOT_SUPPORTED)
        now = nvml.nvmlGpmSampleAlloc()
        nvml.nvmlGpmSampleGet(gpu, now)
        before, self._before = self._before, now
        if before is None:
            return {}
        wanted = nvml.c_nvmlGpmMetricsGet_t()
        wanted.version = nvml.NVML_GPM_METRICS_GET_VERSION
        wanted.numMetrics = len(_GPM)
        wanted.sample1, wanted.sample2 = before, now
        for place, constant in enumerate(_GPM.values()):
            wanted.metrics[place].metricId = getattr(nvml, constant)
        nvml.nvmlGpmMetricsGet(wanted)
        nvml.nvmlGpmSampleFree(before)
        return {name: wanted.metrics[place].value for place, name in enumerate(_GPM)}
