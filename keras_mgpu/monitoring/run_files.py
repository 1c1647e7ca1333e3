"""The event files of all runs. If one of them fails, the others are still written."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from typing import Any

from keras_mgpu.monitoring.chart_layout import layout
from keras_mgpu.monitoring.event_files import EventFile
from keras_mgpu.monitoring.run_names import HOST_RUN, worker_prefix
from keras_mgpu.system import files
from keras_mgpu.system.cluster import Workers

logger = logging.getLogger("keras_mgpu")


class RunFiles:
    """Opens the file of a run when something is first written to it.

    Args:
        log_dir: The folder of all runs.
        workers: The workers that train together. With several, each has its own runs.
        metrics: Names of the metrics that are logged.
    """

    def __init__(self, log_dir: str, workers: Workers, metrics: Collection[str]) -> None:
        name = workers.names[workers.index]
        self._log_dir, self._metrics = log_dir, metrics
        self._prefix = worker_prefix(name) if workers.count > 1 else ""
        self._files: dict[str, EventFile] = {}
        self._failed: set[str] = set()

    def write(self, run: str, values: Mapping[str, float], step: int, time: float) -> None:
        """Writes numbers by tag."""
        self._try(run, step, lambda file: file.scalars(values, step, time))

    def write_summary(self, run: str, summary: Any, step: int) -> None:
        """Writes a summary of any other kind."""
        self._try(run, step, lambda file: file.summary(summary, step))

    def flush(self) -> None:
        for run in self._files:
            self._try(run, 0, EventFile.flush)

    def close(self) -> None:
        for run in self._files:
            self._try(run, 0, EventFile.close)

    def _try(self, run: str, step: int, work: Callable[[EventFile], None]) -> None:
        if run in self._failed:
            return
        try:
            if run not in self._files:
                self._files[run] = self._open(run, step)
            work(self._files[run])
        except Exception as error:
            self._failed.add(run)
            logger.warning("Stopped logging %s: %s", run, error)

    def _open(self, run: str, step: int) -> EventFile:
        file = EventFile(files.join(self._log_dir, f"{self._prefix}{run}"))
        if run == HOST_RUN:
            file.summary(layout(self._metrics), step)
        return file
