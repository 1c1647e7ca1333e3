"""What a run holds while its checkpoints are saved: a lock, a thread, a log, a signal handler."""

from __future__ import annotations

import contextlib
import logging
import time
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NoReturn

from keras_mgpu.checkpoints.parts import Snapshot
from keras_mgpu.checkpoints.preemption import Preempted, StopRequest
from keras_mgpu.checkpoints.retention import Retention
from keras_mgpu.checkpoints.run_lock import RunLock
from keras_mgpu.checkpoints.save_log import SaveLog
from keras_mgpu.checkpoints.save_pace import SavePace
from keras_mgpu.checkpoints.save_timing import SaveTiming
from keras_mgpu.checkpoints.saver import Saver, SaveReport, finish_earlier_save
from keras_mgpu.checkpoints.store import Store
from keras_mgpu.system.cluster import Workers
from keras_mgpu.system.files import make_directory

logger = logging.getLogger("keras_mgpu")


@dataclass(frozen=True)
class SaveSettings:
    """How a run is saved.

    Args:
        directory: Where to save.
        timing: When to save.
        retention: Which checkpoints to keep.
        monitor: Name of the value that retention compares.
        log_dir: Where to log how long saving takes.
        worker_timeout: Seconds that workers wait for one another.
    """

    directory: str
    timing: SaveTiming
    retention: Retention
    monitor: str | None = None
    log_dir: str | None = None
    worker_timeout: float = 600.0


class SaveSession:
    """Saves the checkpoints of one run, until it is closed.

    Args:
        settings: How to save.
        lock: The lock of the directory.
        workers: The workers that save together.
    """

    def __init__(self, settings: SaveSettings, lock: RunLock, workers: Workers) -> None:
        self.store, self.workers = Store(settings.directory), workers
        make_directory(settings.directory)
        if workers.is_first:
            lock.acquire()
        finish_earlier_save(settings.directory)
        if workers.is_first:
            self.store.clean()
        self._pace = SavePace(settings.timing, every_epoch=settings.retention.best > 0)
        self._log = SaveLog(settings.log_dir, workers)
        self._request = StopRequest(settings.directory, workers)
        self._saver = Saver(
            self.store, workers, settings.retention, settings.monitor, settings.worker_timeout
        )
        # In reverse order. A signal that came too late to be served is raised last.
        self._cleanup = contextlib.ExitStack()
        self._cleanup.callback(self._request.stop_listening)
        self._cleanup.callback(self._log.close)
        self._cleanup.callback(lock.release)
        self._cleanup.callback(self._saver.close)

    def start(self, step: int) -> None:
        """Begins a run, of which `step` steps are saved already."""
        self._pace.start(step, time.monotonic())

    def listen(self, trainer: types.CodeType | None) -> None:
        """Takes SIGTERM as a request to save and stop, as long as `trainer` runs."""
        self._request.listen(trainer)

    def is_asked_to_stop(self, step: int) -> bool:
        """Whether to save and stop after `step` steps."""
        return self._request.is_due(step)

    def is_due(self, step: int, epoch_ended: bool) -> bool:
        """Whether to save after `step` steps."""
        return self._pace.is_due(step, time.monotonic(), epoch_ended)

    def has_unsaved(self, step: int) -> bool:
        """Whether a step was trained since the last save."""
        return self._pace.num_unsaved(step) > 0

    def save(self, take_snapshot: Callable[[], Snapshot]) -> None:
        """Takes a snapshot, and writes it in the background once the last one is written."""
        start = time.monotonic()
        self.wait()
        copy_start = time.monotonic()
        snapshot = take_snapshot()
        copied = time.monotonic()
        self._saver.save(snapshot)
        now = time.monotonic()
        self._pace.saved(snapshot.manifest.step, now, stall=now - start)
        self._log.begin_save(stall_seconds=now - start, copy_seconds=copied - copy_start)

    def poll(self) -> None:
        """Raises the error of a save that has failed in the background."""
        self._end_save(self._saver.poll)

    def wait(self) -> None:
        """Waits for the save that is under way, and raises its error."""
        self._end_save(self._saver.wait)

    def stop(self, message: str) -> NoReturn:
        """Ends the program after the run was saved on request."""
        self.wait()
        self._request.answered()
        logger.warning(message)
        self.close()
        raise Preempted(message)

    def on_close(self, work: Callable[[], None]) -> None:
        """Has something done when the session is closed, before everything else."""
        self._cleanup.callback(work)

    def close(self) -> None:
        """Gives back everything that was taken for the run."""
        self._cleanup.close()

    @contextlib.contextmanager
    def closed_on_error(self) -> Iterator[None]:
        """Closes the session if an error is raised inside."""
        try:
            yield
        except BaseException:
            self.close()
            raise

    def _end_save(self, get_report: Callable[[], SaveReport | None]) -> None:
        with self.closed_on_error():
            report = get_report()
        if report is not None:
            self._log.end_save(report)
