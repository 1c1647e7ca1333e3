"""What NVIDIA's driver can be asked about a GPU: one method per question."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from keras_mgpu.monitoring.metric_selection import are_slow

MIB = 1 << 20
GPM_METRICS = {
    "gpu/sm_active": "NVML_GPM_METRIC_SM_UTIL",
    "gpu/sm_occupancy": "NVML_GPM_METRIC_SM_OCCUPANCY",
    "gpu/tensor_active": "NVML_GPM_METRIC_ANY_TENSOR_UTIL",
    "gpu/dram_active": "NVML_GPM_METRIC_DRAM_BW_UTIL",
}


@dataclass(frozen=True)
class Reader:
    """One question to the driver.

    Args:
        name: What it asks for, in log messages.
        metrics: The metrics that it answers.
        read: Asks it about a GPU, given the driver's handle.
        is_counter: Whether the answers are counters, to be compared with the answers before.
        is_kept: Whether the driver keeps the answer until it is asked.
    """

    name: str
    metrics: tuple[str, ...]
    read: Callable[[Any], Mapping[str, float]]
    is_counter: bool = False
    is_kept: bool = False

    @property
    def is_slow(self) -> bool:
        return are_slow(self.metrics)


class NvmlReaders:
    """The questions to ask for some metrics.

    Args:
        nvml: The driver's library, initialized.
        metrics: Names of the metrics to sample.
    """

    def __init__(self, nvml: Any, metrics: Collection[str]) -> None:
        self._nvml, self._metrics = nvml, metrics
        self._pid = os.getpid()

    def of_one_gpu(self) -> list[Reader]:
        """The readers of one GPU. Some keep what they have read, so no other GPU may use them."""
        readers = [
            Reader("memory", ("gpu/memory_used", "gpu/memory_free"), self._memory),
            Reader(
                "processes",
                ("gpu/memory_of_this_process", "gpu/memory_of_others"),
                self._memory_of_processes,
            ),
            Reader("power limit", ("gpu/power_limit",), self._power_limit),
            Reader("temperature", ("gpu/temperature",), self._temperature),
            Reader("clocks", ("gpu/sm_clock", "gpu/memory_clock"), self._clocks),
            Reader(
                "throttling",
                ("gpu/throttled_power", "gpu/throttled_heat", "gpu/throttled_other"),
                self._throttling,
            ),
            Reader("PCIe traffic", ("gpu/pcie_sent", "gpu/pcie_received"), self._pcie),
            Reader(
                "NVLink traffic",
                ("gpu/nvlink_sent", "gpu/nvlink_received"),
                self._nvlink,
                is_counter=True,
            ),
            Reader("ECC errors", ("gpu/ecc_corrected", "gpu/ecc_uncorrected"), self._ecc),
            Reader("energy", ("gpu/energy",), self._energy, is_counter=True, is_kept=True),
            Reader("activity counters", tuple(GPM_METRICS), ActivityReader(self._nvml).read),
        ]
        return [each for each in readers if not set(each.metrics).isdisjoint(self._metrics)]

    def instead_of_ring(self, metric: str) -> Reader:
        """For a GPU that keeps no samples of this metric."""
        read = {
            "gpu/power": self._power,
            "gpu/utilization": self._utilization,
            "gpu/memory_utilization": self._memory_utilization,
        }[metric]
        return Reader(metric, (metric,), read)

    def _power(self, gpu: Any) -> Mapping[str, float]:
        return {"gpu/power": self._nvml.nvmlDeviceGetPowerUsage(gpu) / 1000}

    def _utilization(self, gpu: Any) -> Mapping[str, float]:
        return {"gpu/utilization": self._nvml.nvmlDeviceGetUtilizationRates(gpu).gpu}

    def _memory_utilization(self, gpu: Any) -> Mapping[str, float]:
        return {"gpu/memory_utilization": self._nvml.nvmlDeviceGetUtilizationRates(gpu).memory}

    def _memory(self, gpu: Any) -> Mapping[str, float]:
        info = self._nvml.nvmlDeviceGetMemoryInfo(gpu)
        return {"gpu/memory_used": info.used / MIB, "gpu/memory_free": info.free / MIB}

    def _memory_of_processes(self, gpu: Any) -> Mapping[str, float]:
        mine = others = 0.0
        for process in self._nvml.nvmlDeviceGetComputeRunningProcesses(gpu):
            used = (process.usedGpuMemory or 0) / MIB
            if process.pid == self._pid:
                mine += used
            else:
                others += used
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
        """Megabytes since the driver was loaded, over all links together."""
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
        kib = 1024 / 1e6  # The driver counts kibibytes.
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


class ActivityReader:
    """Activity counters of recent GPUs: what happened between two readings."""

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
        request = nvml.c_nvmlGpmMetricsGet_t()
        request.version = nvml.NVML_GPM_METRICS_GET_VERSION
        request.numMetrics = len(GPM_METRICS)
        request.sample1, request.sample2 = before, now
        for place, constant in enumerate(GPM_METRICS.values()):
            request.metrics[place].metricId = getattr(nvml, constant)
        nvml.nvmlGpmMetricsGet(request)
        nvml.nvmlGpmSampleFree(before)
        return {name: request.metrics[place].value for place, name in enumerate(GPM_METRICS)}
