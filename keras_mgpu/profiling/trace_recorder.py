"""Records a trace with TensorFlow's profiler."""

from __future__ import annotations

import glob
import os
import tempfile
import time
from typing import Any

import tensorflow as tf

from keras_mgpu.internals.tf_profiler import parse_trace

# A call is recorded by the thread that made it, which may be a little later than the step ends.
_SETTLE_SECONDS = 0.002


class TraceRecorder:
    """Runs the profiler from its construction until `stop`.

    Only one profiler can run at a time. If another one is running, this one records nothing.
    """

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="keras_mgpu_profile_")
        options = tf.profiler.experimental.ProfilerOptions(python_tracer_level=0)
        try:
            tf.profiler.experimental.start(self._folder.name, options)
            self.is_running = True
        except tf.errors.AlreadyExistsError:
            self.is_running = False
        self._begin = time.perf_counter()

    def stop(self) -> float:
        """Stops the profiler; returns the seconds from its start until all devices were idle."""
        if self.is_running:
            tf.test.experimental.sync_devices()  # GPUs may still have kernels to run.
        seconds = time.perf_counter() - self._begin
        if self.is_running:
            self.is_running = False
            time.sleep(_SETTLE_SECONDS)
            tf.profiler.experimental.stop()
        return seconds

    def read(self) -> Any:
        """The trace, or `None` if another profiler was running. It can be read once."""
        with self._folder as folder:
            for path in glob.glob(os.path.join(folder, "**", "*.xplane.pb"), recursive=True):
                with open(path, "rb") as file:
                    return parse_trace(file.read())
        return None

    def discard(self) -> None:
        """Stops the profiler, and deletes what it has recorded."""
        self.stop()
        self.read()
