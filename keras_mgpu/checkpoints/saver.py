"""Writes snapshots in the background, alone or together with other workers.

Workers talk through the directory alone. The first one opens a folder and leaves a token in it;
each worker writes its part there and signs it with the token; the first one waits for all parts,
for so long, and then gives the folder its final name. No worker takes part in a collective
operation, so none can be left waiting in one.
"""

from __future__ import annotations

import json
import logging
import threading
import time
import uuid
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from keras_mgpu.checkpoints import store as stores
from keras_mgpu.checkpoints.parts import DifferentModels, Part, Snapshot, complete, write_part
from keras_mgpu.checkpoints.retention import Retention, Saved
from keras_mgpu.checkpoints.store import Store, discard, read_manifest
from keras_mgpu.system import files
from keras_mgpu.system.cluster import Workers, is_unreachable

logger = logging.getLogger("keras_mgpu")
ENDING_SECONDS = 20.0
LOOK_SECONDS, LOOKS = 2.0, 3  # Dead is who was not there three times in a row.
SAY_SECONDS = 15.0
POLL_SECONDS = 0.05
_saves: dict[str, Future[SaveReport]] = {}  # The last one of this process, by directory.


class CheckpointError(RuntimeError):
    """A checkpoint could not be written."""


@dataclass(frozen=True)
class SaveReport:
    """What a save took.

    Args:
        step: Training steps taken when it was saved.
        path: Where it is now.
        num_bytes: Size of this worker's part.
        write_seconds: To write, check and sync that part.
        commit_seconds: From there to the final name.
        num_kept: Checkpoints there are now.
        num_deleted: Checkpoints deleted after it.
    """

    step: int
    path: str
    num_bytes: int
    write_seconds: float
    commit_seconds: float
    num_kept: int
    num_deleted: int


class Saver:
    """Saves one snapshot at a time, in a thread of its own.

    Args:
        store: Where to.
        workers: Who saves together.
        retention: What to keep, or `None` to keep everything.
        monitor: Name of the value that retention looks at.
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
        """Starts writing. There must be no other save under way: `wait` first."""
        self._pending = self._pool.submit(self._save, snapshot)
        _saves[self._store.directory] = self._pending

    def poll(self) -> SaveReport | None:
        """The report of a save that has ended since, if one has.

        Raises:
            CheckpointError: If it failed.
        """
        return self.wait() if self._pending is not None and self._pending.done() else None

    def wait(self) -> SaveReport | None:
        """Waits for the save under way; returns its report, or `None` if there is none."""
        pending, self._pending = self._pending, None
        return None if pending is None else pending.result()

    def close(self) -> None:
        """Lets the thread end once its work is done."""
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
        """Writes this worker's part wherever the first worker wants it, until it is committed.

        A folder left by a run that ended long ago looks like one that was opened just now. So the
        part is written anew whenever another token turns up.
        """
        step, start = snapshot.manifest.step, time.monotonic()
        before = {entry.name for entry in self._store.entries()}
        signed: str | None = None
        part, written = Part(self._workers.index), start
        patience = _Patience(self._timeout, self._workers.names[:1])
        while patience.lasts():
            staging, token = self._attempt(step)
            if token is not None and token != signed:
                try:
                    part = write_part(staging, self._workers.index, snapshot, token)
                except (OSError, tf.errors.OpError):
                    if files.gfile.isdir(staging):
                        raise
                    continue  # The first worker took the folder away: it was an old one.
                signed, written = token, time.monotonic()
            new = [e for e in self._store.entries() if e.step == step and e.name not in before]
            if signed is not None and new:
                seconds = time.monotonic() - written
                size = part.num_bytes
                return SaveReport(step, new[-1].path, size, written - start, seconds, 0, 0)
            time.sleep(POLL_SECONDS)
        raise TimeoutError(
            f"{self._workers.names[0]} did not bring the parts together: {patience.end}"
        )

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
        patience = _Patience(self._timeout, self._workers.names[1:])
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
        """Deletes what need not be kept; returns how many there are and how many went."""
        entries = {entry.name: entry for entry in self._store.entries()}
        if self._retention is None:
            return len(entries), 0
        saved = []
        for name, entry in entries.items():
            try:
                values = read_manifest(entry.path).values
            except ValueError:
                continue  # Damaged, or of a newer version: not ours to judge.
            saved.append(Saved(name, entry.step, values.get(self._monitor or "")))
        kept = self._retention.kept(saved)
        gone = [each.name for each in saved if each.name not in kept]
        num_deleted = 0
        for name in gone:
            try:
                self._store.delete(entries[name])
                num_deleted += 1
            except tf.errors.OpError as error:
                logger.warning("Checkpoint %s could not be deleted: %s", name, error.message)
        return len(entries) - num_deleted, num_deleted


def finish_earlier_save(directory: str) -> None:
    """Waits for what this process is still saving there: a `fit` that raised has not done so."""
    save = _saves.pop(directory, None)
    error = None if save is None else save.exception()
    if error is not None:
        logger.warning("The last checkpoint of the run before is missing. %s", error)


class _Patience:
    """How long to wait for other workers.

    Not for one that has died, and not for long once this process is about to end by an error.

    Args:
        seconds: At most so long.
        names: The workers to wait for.
    """

    def __init__(self, seconds: float, names: Sequence[str]) -> None:
        self._seconds, self._names = seconds, names
        self._until = time.monotonic() + seconds
        self._next_look = time.monotonic() + LOOK_SECONDS
        self._say_at = time.monotonic() + min(SAY_SECONDS, seconds / 2)
        self._is_ending = False
        self._missed = dict.fromkeys(names, 0)

    def lasts(self) -> bool:
        now = time.monotonic()
        if not self._is_ending and not threading.main_thread().is_alive():
            self._is_ending = True
            self._until = min(self._until, now + ENDING_SECONDS)
        if now > self._say_at:
            self._say_at = float("inf")
            names = ", ".join(self._names)
            logger.warning("A checkpoint waits for %s, %g seconds at most.", names, self._seconds)
        if now > self._next_look:
            self._next_look = now + LOOK_SECONDS
            for name in self._names:
                self._missed[name] = self._missed[name] + 1 if is_unreachable(name) else 0
        return now < self._until and max(self._missed.values()) < LOOKS

    @property
    def end(self) -> str:
        """Why it ended, to be said of a worker."""
        if max(self._missed.values()) >= LOOKS:
            return "its process cannot be reached any more"
        if any(map(is_unreachable, self._names)):
            return f"it was given {self._seconds:g} seconds, and seems to have died"
        return (
            f"it was given {self._seconds:g} seconds. If its process is there, it has no "
            "DistributedCheckpoint, or one that saves elsewhere or at other steps; all need the "
            "same one"
        )


def _try_to_discard(staging: str) -> None:
    try:
        discard(staging)
    except (OSError, tf.errors.OpError):
        return  # The next run cleans up. What went wrong before matters more now.


def _read_json(path: str) -> Any:
    """The content of a file that may not be there, or not be whole yet."""
    try:
        return json.loads(files.read_text(path))
    except (tf.errors.OpError, ValueError):
        return None
