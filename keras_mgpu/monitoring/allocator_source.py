"""What TensorFlow's own allocator holds on each GPU. It has no such count for CPUs."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import tensorflow as tf

from keras_mgpu.monitoring import clock
from keras_mgpu.monitoring.run_names import gpu_run
from keras_mgpu.monitoring.series import Sample
from keras_mgpu.monitoring.source import Due

MIB = 1 << 20
FIELDS = {"allocator/used": "current", "allocator/peak": "peak"}


def open_source(metrics: Collection[str]) -> AllocatorSource | None:
    """The allocators of all GPUs that TensorFlow sees; `None` without GPUs."""
    gpus = [device.name for device in tf.config.list_logical_devices("GPU")]
    runs = {name.partition("device:")[2]: gpu_run(index) for index, name in enumerate(gpus)}
    return AllocatorSource(runs, metrics) if runs else None


class AllocatorSource:
    """Memory held by tensors.

    Args:
        runs: The run of each device, by TensorFlow's name (`"GPU:0"`).
        metrics: Names of the metrics to sample.
    """

    def __init__(self, runs: Mapping[str, str], metrics: Collection[str]) -> None:
        self._runs = dict(runs)
        self._fields = {metric: key for metric, key in FIELDS.items() if metric in metrics}

    def sample(self, due: Due) -> list[Sample]:
        if not due.momentary:
            return []
        now, found = clock.now(), []
        for device, run in self._runs.items():
            info = tf.config.experimental.get_memory_info(device)
            found += [
                Sample(run, metric, now, info[key] / MIB) for metric, key in self._fields.items()
            ]
        return found

    def close(self) -> None:
        self._runs.clear()
