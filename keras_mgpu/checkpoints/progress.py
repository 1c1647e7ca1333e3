"""The progress of reading a checkpoint, shown if it takes more than a few seconds."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

logger = logging.getLogger("keras_mgpu")
QUIET_SECONDS = 2.0
LOG_SECONDS = 10.0


@contextmanager
def progress_of(what: str, num_bytes: int) -> Iterator[Callable[[int], None]]:
    """Yields a function to call with the number of bytes read.

    A terminal shows a progress bar after two seconds. Otherwise a line is logged every ten seconds.
    """
    show = _Bar(what, num_bytes) if sys.stderr.isatty() else _Lines(what, num_bytes)
    try:
        yield show.advance
    finally:
        show.close()


class _Lines:
    def __init__(self, what: str, num_bytes: int) -> None:
        self._what, self._total, self._done = what, num_bytes, 0
        self._next = time.monotonic() + LOG_SECONDS
        self._lock = threading.Lock()

    def advance(self, num_bytes: int) -> None:
        with self._lock:
            self._done += num_bytes
            if time.monotonic() >= self._next:
                self._next = time.monotonic() + LOG_SECONDS
                percent = 100 * self._done / max(self._total, 1)
                logger.info("%s: %.0f %%", self._what, percent)

    def close(self) -> None:
        """Does nothing: lines need no end."""


class _Bar:
    def __init__(self, what: str, num_bytes: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, TransferSpeedColumn

        self._bar = Progress(
            "{task.description}",
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        self._task = self._bar.add_task(what, total=num_bytes)
        self._start = time.monotonic() + QUIET_SECONDS

    def advance(self, num_bytes: int) -> None:
        self._bar.update(self._task, advance=num_bytes)
        if time.monotonic() >= self._start and not self._bar.live.is_started:
            self._bar.start()

    def close(self) -> None:
        self._bar.stop()
