"""What TensorFlow's own allocator holds on each GPU. It keeps no count for CPUs."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import tensorflow as tf

from keras_mgpu.monitoring import clock
from keras_mgpu.monitoring.series import Sample
from keras_mgpu.monitoring.source import Due

MIB = 1 << 20
FIELDS = {"allocator/used": "current", "allocator/peak": "peak"}


class AllocatorSource:
    """Memory of tensors.

    Args:
        names: The name of each device in the logs, by TensorFlow's name (`"GPU:0"`).
        metrics: Names of the metrics that are wanted.
    """

    def __init__(self, names: Mapping[str, str], metrics: Collection[str]) -> None:
        self._names = dict(names)
        self._fields = {metric: key for metric, key in FIELDS.items() if metric in metrics}

    @property
    def devices(self) -> Sequence[str]:
        return list(self._names.values())

    def sample(self, due: Due) -> list[Sample]:
        if not due.momentary:
            return []
        now = clock.now()
        found = []
        for device, name in self._names.items():
            info = tf.config.experimental.get_memory_info(device)
            found += [
                Sample(name, metric, now, info[key] / MIB) for metric, key in self._fields.items()
            ]
        return found

    def close(self) -> None:
        self._names.clear()
