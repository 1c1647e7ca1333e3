"""Reads checkpoints. Nothing is returned before every file has been checked."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from keras_mgpu.checkpoints import bundle
from keras_mgpu.checkpoints.damage import checksum_damage, damages, size_damage
from keras_mgpu.checkpoints.manifest import DamagedError, FileEntry, Manifest
from keras_mgpu.checkpoints.progress import progress_of
from keras_mgpu.checkpoints.store import BUNDLE, MODEL, STATE, Entry, Store, read_manifest
from keras_mgpu.system import files
from keras_mgpu.system.memory import num_bytes_of

logger = logging.getLogger("keras_mgpu")


@dataclass(frozen=True)
class Loaded:
    """A checkpoint in host memory, checked.

    Args:
        entry: The checkpoint.
        manifest: Its manifest.
        state: What is not a tensor: history, positions, state of callbacks.
        tensors: All tensors, by key.
    """

    entry: Entry
    manifest: Manifest
    state: dict[str, Any]
    tensors: dict[str, tf.Tensor]


def load(entry: Entry, accept: Callable[[Manifest], None] = lambda manifest: None) -> Loaded:
    """Reads a checkpoint.

    Data files are checked by the checksum of each tensor as it is read, and other files by the
    checksum in the manifest.

    Args:
        entry: The checkpoint.
        accept: Called with the manifest before any tensor is read. Raises to refuse it.

    Raises:
        DamagedError: If a file has changed. Names the file and the tensors.
        ValueError: If the checkpoint is intact, but refused.
    """
    manifest = read_manifest(entry.path)
    for file in manifest.files:
        check = size_damage if _is_data(file) else checksum_damage
        if check(entry.path, file):
            raise DamagedError("; ".join(damages(entry)))
    accept(manifest)
    num_bytes = sum(map(num_bytes_of, manifest.tensors))
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
    """Reads the newest intact checkpoint. Damaged ones are logged and set aside."""
    for entry in reversed(store.entries()):
        try:
            return load(entry, accept)
        except DamagedError as error:
            aside = store.set_aside(entry) if may_set_aside else None
            logger.error(
                "Checkpoint %s is damaged: %s. %s",
                entry.name,
                error,
                f"It was renamed to {aside}." if aside else "It was skipped.",
            )
    return None


def read_file(entry: Entry, name: str) -> str:
    """The text of one of the JSON files of a checkpoint."""
    return files.read_text(files.join(entry.path, name))


def has_model(manifest: Manifest) -> bool:
    """Whether the checkpoint contains the model's configuration."""
    return any(file.name == MODEL for file in manifest.files)


def _is_data(file: FileEntry) -> bool:
    return file.name.startswith(f"{BUNDLE}.data-")
