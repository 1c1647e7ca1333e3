"""A thread of its own that samples all sources and writes what they give."""

from __future__ import annotations

import logging
import queue
import sys
import threading
import time
import types
from collections.abc import Callable, Collection, Sequence

from keras_mgpu.monitoring.event_files import EventFile
from keras_mgpu.monitoring.rows import make_rows
from keras_mgpu.monitoring.series import Series
from keras_mgpu.monitoring.source import Source
from keras_mgpu.monitoring.steps import Progress

logger = logging.getLogger("keras_mgpu")
JOIN_SECONDS = 10.0
FLUSH_SECONDS = 5.0


class Monitor:
    """Samples at an interval; at the steps that training tells of, writes all samples up to then.

    Args:
        sources: What to sample.
        open_file: Makes the event file of a device.
        interval: Seconds between two looks.
        metrics: Names of the metrics that are wanted.
        is_training: Whether training goes on. If it has ended without a word, so does the thread.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        open_file: Callable[[str], EventFile],
        interval: float,
        metrics: Collection[str],
        is_training: Callable[[], bool] = lambda: True,
    ) -> None:
        self._sources = list(sources)
        self._open_file = open_file
        self._interval = interval
        self._metrics = metrics
        self._is_training = is_training
        self._series = Series()
        self._files: dict[str, EventFile] = {}
        self._last_flush = time.monotonic()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gpu_metrics", daemon=True)
        self._later: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        # Assigned by the training thread, read by this one.
        self.progress = self._written = Progress(0, time.time())

    def start(self, progress: Progress) -> None:
        self.progress = self._written = progress
        self._thread.start()

    def stop(self) -> None:
        """Writes what is left, and closes everything."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(JOIN_SECONDS)

    def do_later(self, work: Callable[[], None]) -> None:
        """Lets the thread do a piece of work at its next look."""
        self._later.put(work)

    def file(self, device: str) -> EventFile:
        """The event file of a device. For work that this thread does."""
        if device not in self._files:
            self._files[device] = self._open_file(device)
        return self._files[device]

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()

    def _run(self) -> None:
        try:
            while not self._stop.wait(self._interval) and self._is_training():
                self._look()
            self._look()
        except Exception:
            logger.exception("GPU metrics end here; training goes on.")
        finally:
            for source in self._sources:
                source.close()
            for file in self._files.values():
                file.close()

    def _look(self) -> None:
        for source in list(self._sources):
            try:
                self._series.add(source.sample())
            except Exception as error:
                self._sources.remove(source)
                logger.warning("%s tells nothing any more: %s", type(source).__name__, error)
        while not self._later.empty():
            _do(self._later.get())
        now = self.progress
        if now.step == self._written.step:
            return
        rows = make_rows(self._series.take(now.time), self._written, now, self._metrics)
        for device, values in rows.items():
            self.file(device).scalars(values, now.step, now.time)
        self._written = now
        if time.monotonic() - self._last_flush > FLUSH_SECONDS:
            self._last_flush = time.monotonic()
            for file in self._files.values():
                file.flush()


def _do(work: Callable[[], None]) -> None:
    try:
        work()
    except Exception:
        logger.exception("A profiled step could not be logged; the rest goes on.")


def runs_in(thread_id: int, code: types.CodeType | None) -> bool:
    """Whether a thread is still somewhere inside a piece of code, such as `fit`."""
    if code is None:
        return True
    frame = sys._current_frames().get(thread_id)
    while frame is not None:
        if frame.f_code is code:
            return True
        frame = frame.f_back
    return False
