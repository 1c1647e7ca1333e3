"""An event file for TensorBoard.

It is written by TensorFlow's record writer, with one event for all numbers of a device. Python's
own writers compute a checksum byte by byte, which takes too long here.
"""

from __future__ import annotations

import itertools
import os
import socket
import time
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from keras_mgpu.monitoring.catalogue import DESCRIPTIONS
from keras_mgpu.system import files

_numbers = itertools.count()  # Two runs of `fit` in the same second must not share a file.


class EventFile:
    """The event file of one run.

    Args:
        folder: Where to write it. The folder is created if necessary.
    """

    def __init__(self, folder: str) -> None:
        files.gfile.makedirs(folder)
        place = f"{socket.gethostname()}.{os.getpid()}.{next(_numbers)}"
        name = f"events.out.tfevents.{int(time.time())}.{place}.gpu"
        self._path = files.join(folder, name)
        self._writer = tf.io.TFRecordWriter(self._path)
        self._events: dict[tuple[str, ...], Any] = {}  # Reused: making events takes long.
        self._described: set[str] = set()
        self._write(tf.compat.v1.Event(wall_time=time.time(), file_version="brain.Event:2"))

    def scalars(self, values: Mapping[str, float], step: int, wall_time: float) -> None:
        """Writes numbers by tag."""
        event = self._event_of(tuple(values))
        event.step, event.wall_time = step, wall_time
        for entry, value in zip(event.summary.value, values.values()):
            entry.simple_value = value
        self._write(event)

    def summary(self, summary: Any, step: int) -> None:
        """Writes a summary of any other kind."""
        event = tf.compat.v1.Event(wall_time=time.time(), step=step)
        event.summary.MergeFromString(summary.SerializeToString())
        self._write(event)
        self._writer.flush()

    def flush(self) -> None:
        """Flushes what has been written.

        Raises:
            FileNotFoundError: If the file has been deleted.
        """
        self._writer.flush()
        if "://" not in self._path and not os.path.exists(self._path):
            raise FileNotFoundError(f"{self._path} was deleted")

    def close(self) -> None:
        self._writer.close()

    def _event_of(self, tags: tuple[str, ...]) -> Any:
        """An event with these tags. Only the first event with a tag describes it."""
        if tags in self._events:
            return self._events[tags]
        event = tf.compat.v1.Event()
        has_new_tags = not self._described.issuperset(tags)
        for tag in tags:
            entry = event.summary.value.add(tag=tag)
            if tag not in self._described:
                entry.metadata.summary_description = DESCRIPTIONS.get(tag, tag)
                entry.metadata.plugin_data.plugin_name = "scalars"
        self._described.update(tags)
        if not has_new_tags:
            self._events[tags] = event
        return event

    def _write(self, event: Any) -> None:
        self._writer.write(event.SerializeToString())
