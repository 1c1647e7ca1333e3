"""How long saving takes, for TensorBoard."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from keras_mgpu.checkpoints.saver import SaveReport
from keras_mgpu.system import files
from keras_mgpu.system.cluster import Workers


class SaveLog:
    """Writes what each save took.

    Args:
        log_dir: Where to write, or `None` to write nothing.
        workers: The workers that save together. With several, each has its own run.
    """

    def __init__(self, log_dir: str | None, workers: Workers) -> None:
        run = "checkpoints" if workers.count == 1 else f"checkpoints_{workers.index}"
        self._writer: Any = None
        if log_dir is not None:
            self._writer = tf.summary.create_file_writer(files.join(log_dir, run))
        self._stall_seconds = self._copy_seconds = 0.0

    def begin_save(self, stall_seconds: float, copy_seconds: float) -> None:
        """Notes what the save has cost training that is now written in the background."""
        self._stall_seconds, self._copy_seconds = stall_seconds, copy_seconds

    def end_save(self, report: SaveReport) -> None:
        """Writes everything about a save that has ended."""
        if self._writer is None:
            return
        values = {
            "stall_seconds": self._stall_seconds,
            "copy_seconds": self._copy_seconds,
            "write_seconds": report.write_seconds,
            "commit_seconds": report.commit_seconds,
            "bytes": report.num_bytes,
            "bytes_per_second": report.num_bytes / max(report.write_seconds, 1e-9),
            "kept": report.num_kept,
            "deleted": report.num_deleted,
        }
        with self._writer.as_default(step=report.step):
            for name, value in values.items():
                tf.summary.scalar(f"checkpoint/{name}", value)
        self._writer.flush()

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
