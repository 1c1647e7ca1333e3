"""A thread of its own that samples all sources and writes what they give."""

from __future__ import annotations

import itertools
import logging
import math
import queue
import sys
import threading
import time
import types
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from keras_mgpu.monitoring import clock
from keras_mgpu.monitoring.event_files import EventFile
from keras_mgpu.monitoring.rows import HOST, make_rows
from keras_mgpu.monitoring.series import Series, Summaries
from keras_mgpu.monitoring.source import BREAK_SECONDS, Due, Source
from keras_mgpu.monitoring.steps import Progress
from keras_mgpu.monitoring.worker_times import WorkerTimes

logger = logging.getLogger("keras_mgpu")
JOIN_SECONDS = 10.0
FLUSH_SECONDS = 5.0
# Drivers keep the samples of two seconds and more. All that came in is written just as often.
CATCH_UP_SECONDS = 1.0
_LOOKS = 5  # Before it believes that training has ended.


class Monitor:
    """Samples at an interval, and writes the steps that training tells of.

    A step is written when the next one has ended, or training has: whatever was sampled behind the
    last step of all, as in a validation, belongs to it.

    Args:
        sources: What to sample.
        open_file: Makes the event file of a device.
        interval: Seconds between two looks at what is lost otherwise.
        metrics: Names of the metrics that are wanted.
        worker_times: How several workers compare themselves.
        is_training: Whether training goes on. If it has ended without a word, so does the thread.
        on_failure: Called by the thread when training has ended without a word.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        open_file: Callable[[str], EventFile],
        interval: float,
        metrics: Collection[str],
        worker_times: WorkerTimes | None = None,
        is_training: Callable[[], bool] = lambda: True,
        on_failure: Callable[[], None] = lambda: None,
    ) -> None:
        self._sources = list(sources)
        self._open_file = open_file
        self._metrics = metrics
        self._worker_times = worker_times
        self._is_training = is_training
        self._on_failure = on_failure
        self._looks_an_interval = math.ceil(interval / CATCH_UP_SECONDS)
        self._seconds_a_look = interval / self._looks_an_interval
        self._series = Series()
        self._files: dict[str, EventFile] = {}
        self._broken: set[str] = set()
        self._last_flush = time.monotonic()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gpu_metrics", daemon=True)
        self._later: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._written = Progress(0, clock.now())
        self._waiting: list[Progress] = []  # Steps to be written.
        # What the training thread says: steps to be written, and how many have ended.
        self._told: queue.SimpleQueue[Progress] = queue.SimpleQueue()
        self.num_ended = 0

    def start(self, progress: Progress) -> None:
        self._written, self.num_ended = progress, progress.step
        self._thread.start()

    def tell(self, progress: Progress) -> None:
        """Says that a step, later than those before, is to be written."""
        self._told.put(progress)

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
            self._sample(Due())  # What counters count from.
            for due in self._looks():
                self._sample(due)
                self._do_what_was_put_off()
                if due.kept:
                    self._catch_up()
            if not self._stop.is_set():
                self._on_failure()
            self._sample(Due())
            self._do_what_was_put_off()
            self._write_all()
        except Exception:
            logger.exception("GPU metrics end here; training goes on.")
        finally:
            self._close()

    def _looks(self) -> Iterator[Due]:
        """What is due at each look, at the time of the look, until training has ended."""
        moment = caught_up = time.monotonic()
        for number in itertools.count(1):
            moment = max(moment + self._seconds_a_look, time.monotonic())
            if self._stop.wait(moment - time.monotonic()) or not self._is_training():
                return
            # Looks may take longer than they should, and the next one must not be too late.
            is_time = time.monotonic() + self._seconds_a_look - caught_up > CATCH_UP_SECONDS
            if is_time:
                caught_up = time.monotonic()
            yield Due(momentary=number % self._looks_an_interval == 0, kept=is_time)

    def _sample(self, due: Due) -> None:
        while not self._told.empty():
            self._wait_for(self._told.get())
        for source in list(self._sources):
            try:
                self._series.add(source.sample(due))
            except Exception as error:
                self._sources.remove(source)
                logger.warning("%s tells nothing any more: %s", type(source).__name__, error)

    def _catch_up(self) -> None:
        steps = [step for step in self._waiting if step.step < self.num_ended]
        if steps:
            self._write(steps, self._series.take(len(steps)))
        if time.monotonic() - self._last_flush > FLUSH_SECONDS:
            self._last_flush = time.monotonic()
            for device in list(self._files):
                self._try(device, EventFile.flush)

    def _write_all(self) -> None:
        if not self._waiting:  # The first step has failed.
            self._wait_for(self._written)
        self._write(self._waiting, self._series.take_all())

    def _wait_for(self, step: Progress) -> None:
        self._waiting.append(step)
        self._series.end_step(step.time)

    def _do_what_was_put_off(self) -> None:
        while not self._later.empty():
            _do(self._later.get())

    def _write(self, steps: Sequence[Progress], sums: Sequence[Summaries]) -> None:
        """Writes the first of the steps that wait, with what was sampled in each."""
        rows = [
            make_rows(taken, before, now, self._metrics)
            for taken, before, now in zip(sums, [self._written, *steps], steps)
        ]
        if self._worker_times is not None:
            times = self._worker_times.compare(self._written, steps[-1])
            row = rows[-1].setdefault(HOST, {})
            row.update({name: each for name, each in times.items() if name in self._metrics})
        for step, devices in zip(steps, rows):
            for device, values in devices.items():
                self.write(device, values, step.step, step.time)
            time.sleep(BREAK_SECONDS)
        self._written = steps[-1]
        self._waiting = self._waiting[len(steps) :]

    def _close(self) -> None:
        for source in self._sources:
            source.close()
        for device in list(self._files):
            self._try(device, EventFile.close)
        self._is_training = lambda: False  # It held the frame of `fit`, with all that is in it.

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


def runs_in(thread_id: int, frame: types.FrameType | None) -> bool:
    """Whether a thread is still somewhere inside a call, such as that of `fit`.

    The thread may go on while its frames are looked through, and the frame of a generator that it
    has just left has no caller any more. So it has left only if that is seen several times.
    """
    return frame is None or any(_is_inside(thread_id, frame) for _ in range(_LOOKS))


def _is_inside(thread_id: int, call: types.FrameType) -> bool:
    frame = sys._current_frames().get(thread_id)
    while frame is not None:
        if frame is call:
            return True
        frame = frame.f_back
    return False
