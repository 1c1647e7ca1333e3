"""The background thread that polls all sources and writes their samples."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence

from keras_mgpu.monitoring import clock, poll_schedule
from keras_mgpu.monitoring.metric_selection import tags_of
from keras_mgpu.monitoring.run_files import RunFiles
from keras_mgpu.monitoring.run_names import HOST_RUN
from keras_mgpu.monitoring.series import Series, Summaries
from keras_mgpu.monitoring.source import PAUSE_SECONDS, Due, Source
from keras_mgpu.monitoring.step_totals import StepTotals
from keras_mgpu.monitoring.step_values import values_of_step
from keras_mgpu.monitoring.worker_times import WorkerTimes

logger = logging.getLogger("keras_mgpu")
JOIN_SECONDS = 10.0
FLUSH_SECONDS = 5.0
THREAD_NAME = "gpu_metrics"


class Monitor:
    """Polls sources at an interval, and writes the steps that training reports.

    A step is written when the next one has ended, or training has. Everything sampled after the
    last step, such as during a validation, belongs to the last step.

    Args:
        sources: What to sample.
        files: Where to write.
        interval: Seconds between two polls of what would be lost otherwise.
        metrics: Names of the metrics to write.
        worker_times: How several workers compare themselves.
        is_training: Whether training still runs. The thread ends when it does not.
        on_failure: Called by the thread if training has ended without calling `stop`.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        files: RunFiles,
        interval: float,
        metrics: Collection[str],
        worker_times: WorkerTimes | None = None,
        is_training: Callable[[], bool] = lambda: True,
        on_failure: Callable[[], None] = lambda: None,
    ) -> None:
        self._sources = list(sources)
        self.files = files
        self._interval = interval
        self._tags = tags_of(metrics)
        self._worker_times = worker_times
        self._is_training = is_training
        self._on_failure = on_failure
        self._series = Series()
        self._last_flush = clock.now()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=THREAD_NAME, daemon=True)
        self._later: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._written = StepTotals(0, clock.now())
        self._waiting: list[StepTotals] = []  # Steps to be written.
        # What the training thread reports: steps to be written, and how many have ended.
        self._reported: queue.SimpleQueue[StepTotals] = queue.SimpleQueue()
        self.num_ended = 0

    def start(self, totals: StepTotals) -> None:
        self._written, self.num_ended = totals, totals.step
        self._thread.start()

    def report(self, totals: StepTotals) -> None:
        """Asks for a step to be written. Steps must be reported in order."""
        self._reported.put(totals)

    def stop(self) -> None:
        """Writes what is left, and closes everything."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(JOIN_SECONDS)
        elif self._thread.ident is None:  # It was never started.
            self._close()

    def do_later(self, work: Callable[[], None]) -> None:
        """Lets the thread do a piece of work at its next poll."""
        self._later.put(work)

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()

    def _run(self) -> None:
        try:
            self._sample(Due())  # Counters count from here.
            for due in self._polls():
                self._sample(due)
                self._do_postponed_work()
                if due.kept:
                    self._catch_up()
            if not self._stop.is_set():
                self._on_failure()
            self._sample(Due())
            self._do_postponed_work()
            self._write_all()
        except Exception:
            logger.exception("GPU metrics are no longer logged. Training continues.")
        finally:
            self._close()

    def _polls(self) -> Iterator[Due]:
        return poll_schedule.polls(self._interval, self._wait)

    def _wait(self, seconds: float) -> bool:
        """Waits for the next poll; returns whether there is to be one."""
        return not clock.wait(self._stop, seconds) and self._is_training()

    def _sample(self, due: Due) -> None:
        while not self._reported.empty():
            self._wait_for(self._reported.get())
        for source in list(self._sources):
            try:
                self._series.add(source.sample(due))
            except Exception as error:
                self._sources.remove(source)
                logger.warning("%s no longer reports anything: %s", type(source).__name__, error)

    def _catch_up(self) -> None:
        steps = [step for step in self._waiting if step.step < self.num_ended]
        if steps:
            self._write(steps, self._series.take(len(steps)))
        if clock.now() - self._last_flush > FLUSH_SECONDS:
            self._last_flush = clock.now()
            self.files.flush()

    def _write_all(self) -> None:
        if not self._waiting:  # The first step has failed.
            self._wait_for(self._written)
        self._write(self._waiting, self._series.take_all())

    def _wait_for(self, step: StepTotals) -> None:
        self._waiting.append(step)
        self._series.end_step(step.time)

    def _do_postponed_work(self) -> None:
        while not self._later.empty():
            try:
                self._later.get()()
            except Exception:
                logger.exception("A profiled step could not be logged. Logging continues.")

    def _write(self, steps: Sequence[StepTotals], sums: Sequence[Summaries]) -> None:
        """Writes the first of the steps that wait, with what was sampled in each."""
        values = [
            values_of_step(taken, before, now, self._tags)
            for taken, before, now in zip(sums, [self._written, *steps], steps)
        ]
        if slowest := self._slowest_worker(steps[-1]):
            values[-1].setdefault(HOST_RUN, {}).update(slowest)
        for step, by_run in zip(steps, values):
            for run, numbers in by_run.items():
                self.files.write(run, numbers, step.step, step.time)
            time.sleep(PAUSE_SECONDS)
        self._written = steps[-1]
        self._waiting = self._waiting[len(steps) :]

    def _slowest_worker(self, now: StepTotals) -> dict[str, float]:
        if self._worker_times is None:
            return {}
        found = self._worker_times.compare(self._written, now)
        return {tag: value for tag, value in found.items() if tag in self._tags}

    def _close(self) -> None:
        for source in self._sources:
            source.close()
        self.files.close()
        self._is_training = lambda: False  # It holds the frame of `fit` and everything in it.
