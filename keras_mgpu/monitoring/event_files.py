"""Event files for TensorBoard: one run a device with equal tags, so that it overlays the devices.

They are written by TensorFlow's record writer, with one event for all numbers of a device: Python's
own writers reckon a checksum byte by byte.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from keras_mgpu import files
from keras_mgpu.monitoring.catalogue import BY_NAME

SUFFIXES = {"_max": "the largest of the step's samples", "_last": "the last of them"}


class EventFile:
    """The event file of one run.

    Args:
        folder: Where to; made if it is not there.
    """

    def __init__(self, folder: str) -> None:
        files.gfile.makedirs(folder)
        name = f"events.out.tfevents.{int(time.time())}.{socket.gethostname()}.{os.getpid()}.gpu"
        self._writer = tf.io.TFRecordWriter(files.join(folder, name))
        self._event = tf.compat.v1.Event(wall_time=time.time(), file_version="brain.Event:2")
        self._tags: tuple[str, ...] = ()
        self._described: set[str] = set()
        self._write()

    def scalars(self, values: Mapping[str, float], step: int, wall_time: float) -> None:
        """Writes numbers by tag."""
        tags = tuple(values)
        if tags != self._tags:
            self._begin(tags)
        self._event.step, self._event.wall_time = step, wall_time
        for entry, value in zip(self._event.summary.value, values.values()):
            entry.simple_value = value
        self._write()
        if not self._described.issuperset(tags):
            self._described.update(tags)
            self._tags = ()  # The next event goes without descriptions.

    def summary(self, summary: Any, step: int) -> None:
        """Writes a summary of any other kind."""
        event = tf.compat.v1.Event(wall_time=time.time(), step=step)
        event.summary.MergeFromString(summary.SerializeToString())
        self._writer.write(event.SerializeToString())
        self._writer.flush()

    def flush(self) -> None:
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()

    def _begin(self, tags: tuple[str, ...]) -> None:
        """An event to be filled in again and again; what tags mean is told once."""
        self._event = tf.compat.v1.Event()
        self._tags = tags
        for tag in tags:
            entry = self._event.summary.value.add(tag=tag)
            if tag not in self._described:
                entry.metadata.summary_description = describe(tag)
                entry.metadata.plugin_data.plugin_name = "scalars"

    def _write(self) -> None:
        self._writer.write(self._event.SerializeToString())


def describe(tag: str) -> str:
    """What the numbers of a tag are."""
    for suffix, what in SUFFIXES.items():
        name = tag.removesuffix(suffix)
        if name != tag and name in BY_NAME:
            return f"{BY_NAME[name].meaning}, in {BY_NAME[name].unit}: {what}"
    return f"{BY_NAME[tag].meaning}, in {BY_NAME[tag].unit}" if tag in BY_NAME else tag
