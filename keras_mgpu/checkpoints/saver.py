"""Writes snapshots in the background, alone or together with other workers.

Workers talk through the directory alone. The first one opens a folder and leaves a token in it;
each worker writes its part there and signs it with the token; the first one waits for all parts,
for so long, and then gives the folder its final name. No worker takes part in a collective
operation, so none can be left waiting in one.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from typing import Any

import tensorflow as tf

from keras_mgpu.checkpoints import bundle, files
from keras_mgpu.checkpoints import store as stores
from keras_mgpu.checkpoints.manifest import FileEntry, Manifest, TensorEntry
from keras_mgpu.checkpoints.retention import Retention, Saved
from keras_mgpu.checkpoints.store import Store, discard, read_manifest
from keras_mgpu.checkpoints.variables import entries_of
from keras_mgpu.checkpoints.workers import Workers

POLL_SECONDS = 0.05


class CheckpointError(RuntimeError):
    """A checkpoint could not be written."""


@dataclass(frozen=True)
class Snapshot:
    """A moment of training, in host memory.

    Args:
        manifest: What is known before anything is written.
        parts: For each device, the tensors that this worker writes.
        state: What is no tensor.
        own_state: What of it belongs to this worker alone.
        model: The model as Keras writes it down, or `None` if it cannot be.
    """

    manifest: Manifest
    parts: Mapping[str, bundle.TensorsByKey]
    state: Mapping[str, Any]
    own_state: Mapping[str, Any]
    model: str | None = None


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
        except (OSError, tf.errors.OpError, TimeoutError) as error:
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
            path = self._store.commit(staging, _complete(staging, snapshot, parts))
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
        while time.monotonic() - start < self._timeout:
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
            f"{self._workers.names[0]} did not bring the parts together within "
            f"{self._timeout:g} seconds; it may have died"
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
        start = time.monotonic()
        while len(found) < self._workers.count - 1:
            for index in range(1, self._workers.count):
                fields = _read_json(files.join(staging, f"part-{index}.json"))
                if index not in found and fields is not None and fields["token"] == token:
                    found[index] = Part.from_json(fields)
            if time.monotonic() - start > self._timeout:
                missing = [
                    name
                    for index, name in enumerate(self._workers.names)
                    if index > 0 and index not in found
                ]
                raise TimeoutError(
                    f"{', '.join(missing)} did not write its part of step {step} within "
                    f"{self._timeout:g} seconds; it may have died"
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
        for name in gone:
            self._store.delete(entries[name])
        return len(entries) - len(gone), len(gone)


@dataclass(frozen=True)
class Part:
    """What one worker has written into a folder.

    Args:
        worker: Its number.
        token: The attempt it belongs to.
        prefixes: Its bundles, in order.
        files: Their data files.
        tensors: What is in them.
        state: What belongs to this worker alone.
    """

    worker: int
    token: str = ""
    prefixes: tuple[str, ...] = ()
    files: tuple[FileEntry, ...] = ()
    tensors: tuple[TensorEntry, ...] = ()
    state: Mapping[str, Any] | None = None

    @property
    def num_bytes(self) -> int:
        return sum(file.num_bytes for file in self.files)

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Part:
        return cls(
            fields["worker"],
            fields["token"],
            tuple(fields["prefixes"]),
            tuple(FileEntry(**each) for each in fields["files"]),
            tuple(TensorEntry(e["key"], tuple(e["shape"]), e["dtype"]) for e in fields["tensors"]),
            fields["state"],
        )


def write_part(staging: str, worker: int, snapshot: Snapshot, token: str) -> Part:
    """Writes this worker's tensors, and a file that says so.

    One thread for each device writes; others bring to disk and check what has been written.
    """
    groups = [
        (f"part-{worker}-{number}", group)
        for number, group in enumerate(
            group for tensors in snapshot.parts.values() for group in bundle.shards(tensors)
        )
    ]

    def write(group: tuple[str, dict[str, tf.Tensor]]) -> Future[FileEntry]:
        prefix, tensors = group
        bundle.write(files.join(staging, prefix), tensors)
        return finishing.submit(_finish_file, staging, bundle.data_file(prefix))

    with ThreadPoolExecutor(2) as finishing:
        with ThreadPoolExecutor(max(1, len(snapshot.parts))) as writing:
            futures = list(writing.map(write, groups))
        entries = tuple(future.result() for future in futures)
    part = Part(
        worker,
        token,
        tuple(prefix for prefix, _ in groups),
        entries,
        tuple(entry for _, group in groups for entry in entries_of(group)),
        snapshot.own_state,
    )
    if worker > 0:
        name = f"part-{worker}.json"
        unsigned = files.join(staging, f"{name}.tempstate0")
        files.write_text(unsigned, json.dumps(asdict(part)))
        files.gfile.rename(unsigned, files.join(staging, name), overwrite=True)
    return part


def _complete(staging: str, snapshot: Snapshot, parts: list[Part]) -> Manifest:
    """Makes one bundle of all parts and writes the files beside it; returns the manifest."""
    prefixes = [files.join(staging, prefix) for part in parts for prefix in part.prefixes]
    bundle.merge(prefixes, files.join(staging, stores.BUNDLE))
    data = [file for part in parts for file in part.files]
    entries = [
        replace(file, name=bundle.data_file(stores.BUNDLE, index, len(data)))
        for index, file in enumerate(data)
    ]
    state = {**snapshot.state, "workers": [part.state for part in parts]}
    texts = {stores.STATE: json.dumps(state)}
    if snapshot.model is not None:
        texts[stores.MODEL] = snapshot.model
    for name, text in texts.items():
        files.write_text(files.join(staging, name), text)
    for name in [bundle.index_file(stores.BUNDLE), *texts]:
        entries.append(_finish_file(staging, name))
    for name in [stores.ATTEMPT, *(f"part-{part.worker}.json" for part in parts)]:
        files.remove(files.join(staging, name))
    tensors = tuple(tensor for part in parts for tensor in part.tensors)
    return replace(snapshot.manifest, files=tuple(entries), tensors=tensors)


def _finish_file(folder: str, name: str) -> FileEntry:
    """Returns when a file is on disk; reads it back for its checksum."""
    path = files.join(folder, name)
    crc32 = files.checksum(path)
    files.sync(path)
    return FileEntry(name, files.size(path), crc32)


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
