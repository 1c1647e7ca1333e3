"""Reading checkpoints back: nothing is handed out before every file of it has been checked."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from keras_mgpu.checkpoints import bundle
from keras_mgpu.checkpoints.manifest import DamagedError, FileEntry, Manifest
from keras_mgpu.checkpoints.progress import progress_of
from keras_mgpu.checkpoints.store import BUNDLE, MODEL, STATE, Entry, Store, read_manifest
from keras_mgpu.system import files

logger = logging.getLogger("keras_mgpu")


@dataclass(frozen=True)
class Loaded:
    """A checkpoint in host memory, checked.

    Args:
        entry: Where it was.
        manifest: What it says of itself.
        state: What is no tensor: history, positions, state of callbacks.
        tensors: All tensors, by key.
    """

    entry: Entry
    manifest: Manifest
    state: dict[str, Any]
    tensors: dict[str, tf.Tensor]


def load(entry: Entry, accept: Callable[[Manifest], None] = lambda manifest: None) -> Loaded:
    """Reads a checkpoint.

    The data files are checked by the checksum of each tensor in them, while it is read; all others
    by their own.

    Args:
        entry: Which one.
        accept: Is given the manifest before any tensor is read, and raises to refuse it.

    Raises:
        DamagedError: If a file is not what was written. Names the file, and the tensor.
        ValueError: If the checkpoint is intact, but refused.
    """
    manifest = read_manifest(entry.path)
    for file in manifest.files:
        check = size_damage if _is_data(file) else checksum_damage
        if check(entry.path, file):
            raise DamagedError("; ".join(damages(entry)))
    accept(manifest)
    num_bytes = sum(map(bundle.num_bytes_saved, manifest.tensors))
    with progress_of(f"Reading {entry.name}", num_bytes) as progress:
        try:
            tensors = bundle.read(files.join(entry.path, BUNDLE), manifest.tensors, progress)
        except tf.errors.OpError as error:
            raise DamagedError("; ".join(damages(entry)) or error.message) from error
    return Loaded(entry, manifest, json.loads(read_file(entry, STATE)), tensors)


def newest_intact(
    store: Store,
    accept: Callable[[Manifest], None] = lambda manifest: None,
    may_set_aside: bool = True,
) -> Loaded | None:
    """The newest checkpoint that is intact. Damaged ones are named and set aside."""
    for entry in reversed(store.entries()):
        try:
            return load(entry, accept)
        except DamagedError as error:
            aside = store.set_aside(entry) if may_set_aside else None
            logger.error(
                "Checkpoint %s is damaged: %s. %s",
                entry.name,
                error,
                f"It was set aside as {aside}." if aside else "It is passed over.",
            )
    return None


def read_file(entry: Entry, name: str) -> str:
    """The text of one of the JSON files of a checkpoint."""
    return files.read_text(files.join(entry.path, name))


def has_model(manifest: Manifest) -> bool:
    """Whether the model was written down in it."""
    return any(file.name == MODEL for file in manifest.files)


def damages(
    entry: Entry, progress: Callable[[int], None] = lambda num_bytes: None, full: bool = True
) -> list[str]:
    """Everything that is wrong with a checkpoint, a line each; reads each of its bytes.

    Args:
        entry: Which one.
        progress: Is told how many bytes were read each time.
        full: `False` looks at sizes only.
    """
    try:
        manifest = read_manifest(entry.path)
    except ValueError as error:
        return [str(error)]
    found = []
    for file in manifest.files:
        damage = size_damage(entry.path, file)
        if damage is None and full:
            damage = checksum_damage(entry.path, file, progress)
        if damage is not None:
            found.append(damage)
    if found and full:
        keys = bundle.unreadable(files.join(entry.path, BUNDLE), manifest.tensors)
        if keys:
            found.append(f"tensors that cannot be read: {_some(keys)}")
    return found


def size_damage(folder: str, file: FileEntry) -> str | None:
    path = files.join(folder, file.name)
    if not files.gfile.exists(path):
        return f"{file.name} is missing"
    if files.size(path) != file.num_bytes:
        return f"{file.name} has {files.size(path)} bytes instead of {file.num_bytes}"
    return None


def checksum_damage(
    folder: str, file: FileEntry, progress: Callable[[int], None] = lambda num_bytes: None
) -> str | None:
    if size_damage(folder, file):
        return size_damage(folder, file)
    found = files.checksum(files.join(folder, file.name), progress)
    return None if found == file.crc32 else f"{file.name}: checksum does not match"


def _is_data(file: FileEntry) -> bool:
    return file.name.startswith(f"{BUNDLE}.data-")


def _some(keys: list[str]) -> str:
    more = f" and {len(keys) - 5} more" if len(keys) > 5 else ""
    return ", ".join(keys[:5]) + more
