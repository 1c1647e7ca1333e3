"""A thread of its own that samples all sources and writes what they give."""

from __future__ import annotations

import logging
import queue
import sys
import threading
import time
import types
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from keras_mgpu.monitoring import clock
from keras_mgpu.monitoring.event_files import EventFile
from keras_mgpu.monitoring.rows import HOST, make_rows
from keras_mgpu.monitoring.series import Series
from keras_mgpu.monitoring.source import BREAK_SECONDS, Source
from keras_mgpu.monitoring.steps import Progress
from keras_mgpu.monitoring.worker_times import WorkerTimes

logger = logging.getLogger("keras_mgpu")
JOIN_SECONDS = 10.0
FLUSH_SECONDS = 5.0
SLOW_SECONDS = 0.9  # Once a second, with looks that come a little early.
NOTICE_SECONDS = 1.0  # How soon it sees that training has ended.
_LOOKS = 5  # Before it believes that.


class Monitor:
    """Samples at an interval; at the steps that training tells of, writes all samples up to then.

    Args:
        sources: What to sample.
        open_file: Makes the event file of a device.
        interval: Seconds between two looks.
        metrics: Names of the metrics that are wanted.
        worker_times: How several workers compare themselves.
        is_training: Whether training goes on. If it has ended without a word, so does the thread.
        on_end: What to do when the thread ends.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        open_file: Callable[[str], EventFile],
        interval: float,
        metrics: Collection[str],
        worker_times: WorkerTimes | None = None,
        is_training: Callable[[], bool] = lambda: True,
        on_end: Callable[[], None] = lambda: None,
    ) -> None:
        self._sources = list(sources)
        self._open_file = open_file
        self._interval = interval
        self._metrics = metrics
        self._worker_times = worker_times
        self._is_training = is_training
        self._on_end = on_end
        self._series = Series()
        self._files: dict[str, EventFile] = {}
        self._broken: set[str] = set()
        self._last_flush = time.monotonic()
        self._last_slow = float("-inf")
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gpu_metrics", daemon=True)
        self._later: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        # Assigned by the training thread, read by this one.
        self.progress = self._written = Progress(0, clock.now())

    def start(self, progress: Progress) -> None:
        self.progress = self._written = progress
        self._thread.start()

    def stop(self) -> None:
        """Writes what is left, and closes everything."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(JOIN_SECONDS)
        elif self._thread.ident is None:  # It was never started.
            self._close()

    def do_later(self, work: Callable[[], None]) -> None:
        """Lets the thread do a piece of work at its next look."""
        self._later.put(work)

    def write(self, device: str, values: Mapping[str, float], step: int, time: float) -> None:
        """Writes numbers to the file of a device. For work that this thread does."""
        self._try(device, lambda file: file.scalars(values, step, time))

    def write_summary(self, device: str, summary: Any, step: int) -> None:
        """Writes a summary of any other kind, likewise."""
        self._try(device, lambda file: file.summary(summary, step))

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()

    def _run(self) -> None:
        try:
            self._sample()  # What counters count from.
            while self._wait() and self._is_training():
                self._look()
            self._look(is_last=True)
        except Exception:
            logger.exception("GPU metrics end here; training goes on.")
        finally:
            self._on_end()
            self._close()

    def _wait(self) -> bool:
        """Waits for the next look; whether there is one."""
        until = time.monotonic() + self._interval
        while (left := until - time.monotonic()) > 0 and self._is_training():
            if self._stop.wait(min(left, NOTICE_SECONDS)):
                return False
        return not self._stop.is_set()

    def _close(self) -> None:
        for source in self._sources:
            source.close()
        for device in list(self._files):
            self._try(device, EventFile.close)

    def _look(self, is_last: bool = False) -> None:
        self._sample(is_last)
        while not self._later.empty():
            _do(self._later.get())
        now = self.progress
        # A last validation has no step behind it, and counts for the one before.
        is_validated = is_last and clock.now() - self._written.time > self._interval
        if now.step > self._written.step or is_validated:
            self._write(now, float("inf") if is_last else now.time)
        else:
            self._series.fold()
        if time.monotonic() - self._last_flush > FLUSH_SECONDS:
            self._last_flush = time.monotonic()
            for device in list(self._files):
                self._try(device, EventFile.flush)

    def _sample(self, is_last: bool = False) -> None:
        slow_too = is_last or time.monotonic() - self._last_slow > SLOW_SECONDS
        if slow_too:
            self._last_slow = time.monotonic()
        for source in list(self._sources):
            try:
                self._series.add(source.sample(slow_too))
            except Exception as error:
                self._sources.remove(source)
                logger.warning("%s tells nothing any more: %s", type(source).__name__, error)

    def _write(self, now: Progress, until: float) -> None:
        rows = make_rows(self._series.take(until), self._written, now, self._metrics)
        if self._worker_times is not None:
            times = self._worker_times.compare(self._written, now)
            row = rows.setdefault(HOST, {})
            row.update({name: each for name, each in times.items() if name in self._metrics})
        for device, values in rows.items():
            self.write(device, values, now.step, now.time)
            time.sleep(BREAK_SECONDS)
        self._written = now

    def _try(self, device: str, work: Callable[[EventFile], None]) -> None:
        """Does something with the file of a device; if it fails, the others go on."""
        if device in self._broken:
            return
        try:
            if device not in self._files:
                self._files[device] = self._open_file(device)
            work(self._files[device])
        except Exception as error:
            self._broken.add(device)
            logger.warning("%s is not logged any more: %s", device, error)


def _do(work: Callable[[], None]) -> None:
    try:
        work()
    except Exception:
        logger.exception("A profiled step could not be logged; the rest goes on.")


def runs_in(thread_id: int, code: types.CodeType | None) -> bool:
    """Whether a thread is still somewhere inside a piece of code, such as `fit`.

    The thread may go on while its frames are looked through, and the frame of a generator that it
    has just left has no caller any more. So it has left only if that is seen several times.
    """
    return code is None or any(_is_inside(thread_id, code) for _ in range(_LOOKS))


def _is_inside(thread_id: int, code: types.CodeType) -> bool:
    frame = sys._current_frames().get(thread_id)
    while frame is not None:
        if frame.f_code is code:
            return True
        frame = frame.f_back
    return False
