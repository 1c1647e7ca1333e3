"""NVIDIA GPUs, read through the driver's own library (NVML).

Utilization and power come from the driver's rings of samples, so that no peak between two polls is
missed. The package `nvidia-ml-py` (the extra `nvidia`) is imported only when it is needed.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from keras_mgpu.monitoring import clock
from keras_mgpu.monitoring.nvml_readers import NvmlReaders, Reader
from keras_mgpu.monitoring.nvml_rings import Ring, RingReader, rings_of
from keras_mgpu.monitoring.run_names import gpu_run
from keras_mgpu.monitoring.series import Sample, Samples
from keras_mgpu.monitoring.source import PAUSE_SECONDS, Due
from keras_mgpu.monitoring.visible_gpus import handles_of

logger = logging.getLogger("keras_mgpu")


def open_source(buses: Sequence[str], metrics: Collection[str]) -> NvmlSource | None:
    """The GPUs of this job; `None` without GPUs or without a driver, and a log line says why."""
    # Without GPUs nobody misses their metrics.
    level = logging.WARNING if buses else logging.INFO
    try:
        import pynvml
    except ImportError:
        logger.log(level, 'No GPU metrics: run `pip install "keras-mgpu[nvidia]"` to get them.')
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        logger.log(level, "No GPU metrics: %s.", error)
        return None
    try:
        handles = handles_of(pynvml, buses)
    except pynvml.NVMLError as error:
        logger.warning("No GPU metrics: %s.", error)
        handles = []
    if not handles:
        pynvml.nvmlShutdown()
        return None
    runs = {gpu_run(index): handle for index, handle in enumerate(handles)}
    return NvmlSource(pynvml, runs, metrics)


@dataclass
class _Gpu:
    """One GPU and how it is read.

    Args:
        run: Its run.
        handle: The driver's handle.
        rings: Reads what the driver keeps.
        readers: The questions that it answers.
        counters: For each counter, when it was read and what it was.
    """

    run: str
    handle: Any
    rings: RingReader
    readers: list[Reader]
    counters: dict[str, tuple[float, float]] = field(default_factory=dict)


class NvmlSource:
    """Samples GPUs.

    Args:
        nvml: The driver's library, initialized.
        handles: The driver's handles of the GPUs, by their runs.
        metrics: Names of the metrics to sample.
    """

    def __init__(self, nvml: Any, handles: Mapping[str, Any], metrics: Collection[str]) -> None:
        self._nvml, self._metrics = nvml, frozenset(metrics)
        self._readers = NvmlReaders(nvml, self._metrics)
        self._gpus = [
            _Gpu(
                run,
                handle,
                RingReader(nvml, run, handle, rings_of(nvml, self._metrics)),
                self._readers.of_one_gpu(),
            )
            for run, handle in handles.items()
        ]

    def sample(self, due: Due) -> list[Sample | Samples]:
        found: list[Sample | Samples] = []
        for gpu in list(self._gpus):
            try:
                if due.kept:
                    found += self._from_rings(gpu)
                found += self._from_readers(gpu, due)
            except self._nvml.NVMLError as error:
                self._gpus.remove(gpu)
                logger.warning(
                    "Stopped logging %s: %s. Other GPUs are not affected.", gpu.run, error
                )
            if due.kept:
                time.sleep(PAUSE_SECONDS)
        return found

    def close(self) -> None:
        try:
            self._nvml.nvmlShutdown()
        except self._nvml.NVMLError:
            logger.debug("The driver's library could not be shut down.", exc_info=True)

    def _from_rings(self, gpu: _Gpu) -> Iterator[Samples]:
        for each in gpu.rings.read():
            if isinstance(each, Ring):
                gpu.readers.append(self._readers.instead_of_ring(each.metric))
            else:
                yield each

    def _from_readers(self, gpu: _Gpu, due: Due) -> list[Sample]:
        found, unsupported = [], []
        for reader in list(gpu.readers):
            if not _is_due(reader, due):
                continue
            try:
                values, now = reader.read(gpu.handle), clock.now()
            except (
                self._nvml.NVMLError_NotSupported,
                self._nvml.NVMLError_FunctionNotFound,
                self._nvml.NVMLError_NoPermission,
                self._nvml.NVMLError_InvalidArgument,
            ):
                gpu.readers.remove(reader)
                unsupported.append(reader.name)
                continue
            for metric, value in values.items():
                if reader.is_counter:
                    found += _grown(gpu, metric, now, value)
                else:
                    found.append(Sample(gpu.run, metric, now, float(value)))
        if unsupported:
            logger.info("%s does not support: %s.", gpu.run, ", ".join(unsupported))
        return [sample for sample in found if sample.metric in self._metrics]


def _is_due(reader: Reader, due: Due) -> bool:
    """Whether to read it in this poll.

    What the driver keeps is read whenever steps are written: each of them must get its share.
    """
    if reader.is_kept:
        return due.kept
    return due.slow if reader.is_slow else due.momentary


def _grown(gpu: _Gpu, metric: str, now: float, count: float) -> list[Sample]:
    """What a counter has counted since it was last read: energy, or traffic per second."""
    then, before = gpu.counters.get(metric, (now, count))
    gpu.counters[metric] = now, count
    if now <= then:
        return []
    if metric == "gpu/energy":
        return [Sample(gpu.run, metric, now, count - before, since=then)]
    return [Sample(gpu.run, metric, now, (count - before) / (now - then))]
