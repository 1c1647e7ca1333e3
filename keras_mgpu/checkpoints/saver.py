"""Writes snapshots in the background, alone or together with other workers.

Workers communicate only through the directory. The first worker creates a folder with a token in
it. Each worker writes its part there and marks it with the token. The first worker waits for all
parts, up to a timeout, and then gives the folder its final name. There is no collective operation,
so no worker can be left waiting in one.
"""

from __future__ import annotations

import json
import logging
import time
import uuid
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from keras_mgpu.checkpoints import store as stores
from keras_mgpu.checkpoints.parts import DifferentModels, Part, Snapshot, complete, write_part
from keras_mgpu.checkpoints.patience import Patience
from keras_mgpu.checkpoints.retention import Retention, Saved
from keras_mgpu.checkpoints.store import Store, discard, read_manifest
from keras_mgpu.system import files
from keras_mgpu.system.cluster import Workers

logger = logging.getLogger("keras_mgpu")
POLL_SECONDS = 0.05
_saves: dict[str, Future[SaveReport]] = {}  # The last save of this process, by directory.


class CheckpointError(RuntimeError):
    """A checkpoint could not be saved."""


@dataclass(frozen=True)
class SaveReport:
    """The outcome of a save.

    Args:
        step: Training steps taken.
        path: Path of the checkpoint.
        num_bytes: Size of this worker's part.
        write_seconds: Time to write, check and sync that part.
        commit_seconds: Time from then until the checkpoint was complete.
        num_kept: Checkpoints that exist now.
        num_deleted: Checkpoints that were deleted.
    """

    step: int
    path: str
    num_bytes: int
    write_seconds: float
    commit_seconds: float
    num_kept: int
    num_deleted: int


class Saver:
    """Saves one snapshot at a time, in its own thread.

    Args:
        store: Where to save.
        workers: The workers that save together.
        retention: What to keep; `None` keeps everything.
        monitor: Name of the value that decides which checkpoints are best.
        timeout: Seconds that workers wait for one another.
    """

    def __init__(
        self,
        store: Store,
        workers: Workers,
        retention: Retention | None = None,
        monitor: str | None = None,
        timeout: float = 600.0,
    ) -> None:
        self._store, self._workers = store, workers
        self._retention, self._monitor = retention, monitor
        self._timeout = timeout
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._pending: Future[SaveReport] | None = None

    def save(self, snapshot: Snapshot) -> None:
        """Starts writing. Call `wait` first if another save is running."""
        self._pending = self._pool.submit(self._save, snapshot)
        _saves[self._store.directory] = self._pending

    def poll(self) -> SaveReport | None:
        """Returns the report of a save that has ended in the meantime, or `None`.

        Raises:
            CheckpointError: If it failed.
        """
        return self.wait() if self._pending is not None and self._pending.done() else None

    def wait(self) -> SaveReport | None:
        """Waits for the running save; returns its report, or `None` if there is none."""
        pending, self._pending = self._pending, None
        return None if pending is None else pending.result()

    def close(self) -> None:
        """Lets the thread end when its work is done."""
        self._pool.shutdown(wait=False)

    def _save(self, snapshot: Snapshot) -> SaveReport:
        step = snapshot.manifest.step
        try:
            if self._workers.is_first:
                return self._lead(snapshot)
            return self._follow(snapshot)
        except (OSError, tf.errors.OpError, TimeoutError, DifferentModels) as error:
            message = getattr(error, "message", None) or str(error)
            raise CheckpointError(
                f"The checkpoint of step {step} could not be saved in {self._store.directory}: "
                f"{message}"
            ) from error

    def _lead(self, snapshot: Snapshot) -> SaveReport:
        start = time.monotonic()
        staging = self._store.staging(snapshot.manifest.step)
        try:
            files.gfile.makedirs(staging)
            token = uuid.uuid4().hex
            if self._workers.count > 1:
                files.write_text(files.join(staging, stores.ATTEMPT), json.dumps(token))
            mine = write_part(staging, self._workers.index, snapshot, token)
            written = time.monotonic()
            parts = [mine, *self._other_parts(staging, snapshot.manifest.step, token)]
            path = self._store.commit(staging, complete(staging, snapshot, parts))
        except BaseException:
            _try_to_discard(staging)
            raise
        num_kept, num_deleted = self._retain()
        now = time.monotonic()
        return SaveReport(
            snapshot.manifest.step,
            path,
            mine.num_bytes,
            written - start,
            now - written,
            num_kept,
            num_deleted,
        )

    def _follow(self, snapshot: Snapshot) -> SaveReport:
        """Writes this worker's part where the first worker wants it, until it is committed.

        A folder from an earlier run looks like a new one. So the part is written again whenever
        another token appears.
        """
        step, start = snapshot.manifest.step, time.monotonic()
        before = {entry.name for entry in self._store.entries()}
        signed: str | None = None
        part, written = Part(self._workers.index), start
        patience = Patience(self._timeout, self._workers.names[:1])
        while patience.lasts():
            staging, token = self._attempt(step)
            if token is not None and token != signed:
                try:
                    part = write_part(staging, self._workers.index, snapshot, token)
                except (OSError, tf.errors.OpError):
                    if files.gfile.isdir(staging):
                        raise
                    continue  # The first worker removed the folder: it was an old one.
                signed, written = token, time.monotonic()
            new = [e for e in self._store.entries() if e.step == step and e.name not in before]
            if signed is not None and new:
                seconds = time.monotonic() - written
                size = part.num_bytes
                return SaveReport(step, new[-1].path, size, written - start, seconds, 0, 0)
            time.sleep(POLL_SECONDS)
        raise TimeoutError(f"{self._workers.names[0]} did not complete it: {patience.end}")

    def _attempt(self, step: int) -> tuple[str, str | None]:
        for staging in reversed(self._store.stagings(step)):
            token = _read_json(files.join(staging, stores.ATTEMPT))
            if token is not None:
                return staging, token
        return "", None

    def _other_parts(self, staging: str, step: int, token: str) -> list[Part]:
        """Waits for the parts of the other workers.

        Raises:
            TimeoutError: Names those that are missing.
        """
        found: dict[int, Part] = {}
        patience = Patience(self._timeout, self._workers.names[1:])
        while len(found) < self._workers.count - 1:
            for index in range(1, self._workers.count):
                fields = _read_json(files.join(staging, f"part-{index}.json"))
                if index not in found and fields is not None and fields["token"] == token:
                    found[index] = Part.from_json(fields)
            if not patience.lasts():
                missing = [
                    name
                    for index, name in enumerate(self._workers.names)
                    if index > 0 and index not in found
                ]
                raise TimeoutError(
                    f"{', '.join(missing)} did not write its part of step {step}: {patience.end}"
                )
            if len(found) < self._workers.count - 1:
                time.sleep(POLL_SECONDS)
        return [found[index] for index in sorted(found)]

    def _retain(self) -> tuple[int, int]:
        """Deletes what need not be kept; returns how many were kept and deleted."""
        entries = {entry.name: entry for entry in self._store.entries()}
        if self._retention is None:
            return len(entries), 0
        saved = []
        for name, entry in entries.items():
            try:
                values = read_manifest(entry.path).values
            except ValueError:
                continue  # Damaged, or of a newer version: left alone.
            saved.append(Saved(name, entry.step, values.get(self._monitor or "")))
        kept = self._retention.kept(saved)
        gone = [each.name for each in saved if each.name not in kept]
        num_deleted = 0
        for name in gone:
            try:
                self._store.delete(entries[name])
                num_deleted += 1
            except tf.errors.OpError as error:
                logger.warning("Could not delete checkpoint %s: %s", name, error.message)
        return len(entries) - num_deleted, num_deleted


def finish_earlier_save(directory: str) -> None:
    """Waits for a save that is still running, as after a `fit` that raised."""
    save = _saves.pop(directory, None)
    error = None if save is None else save.exception()
    if error is not None:
        logger.warning("The last checkpoint of the previous run was not saved. %s", error)


def _try_to_discard(staging: str) -> None:
    try:
        discard(staging)
    except (OSError, tf.errors.OpError):
        return  # The next run cleans up. The error that led here matters more.


def _read_json(path: str) -> Any:
    """The content of a file; `None` if it is missing or incomplete."""
    try:
        return json.loads(files.read_text(path))
    except (tf.errors.OpError, ValueError):
        return None
