"""Writes each worker's part of a snapshot, and joins the parts to one checkpoint."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from typing import Any

import tensorflow as tf

from keras_mgpu.checkpoints import bundle
from keras_mgpu.checkpoints import store as stores
from keras_mgpu.checkpoints.manifest import FileEntry, Manifest, TensorEntry
from keras_mgpu.system import files


@dataclass(frozen=True)
class Snapshot:
    """The state of a run at one point in time, in host memory.

    Args:
        manifest: What is known before anything is written.
        parts: For each device, the tensors that this worker writes.
        state: What is not a tensor.
        own_state: The part of it that belongs to this worker only.
        model: The model's configuration as JSON; `None` if it cannot be serialized.
    """

    manifest: Manifest
    parts: Mapping[str, bundle.TensorsByKey]
    state: Mapping[str, Any]
    own_state: Mapping[str, Any]
    model: str | None = None


@dataclass(frozen=True)
class Part:
    """What one worker has written to a folder.

    Args:
        worker: Its number.
        token: Token of the attempt it belongs to.
        prefixes: Its bundles, in order.
        files: Their data files.
        tensors: The tensors in them.
        state: State that belongs to this worker only.
        model: A checksum of the model it trains; 0 if not known.
    """

    worker: int
    token: str = ""
    prefixes: tuple[str, ...] = ()
    files: tuple[FileEntry, ...] = ()
    tensors: tuple[TensorEntry, ...] = ()
    state: Mapping[str, Any] | None = None
    model: int = 0

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
            fields["model"],
        )


def write_part(staging: str, worker: int, snapshot: Snapshot, token: str) -> Part:
    """Writes this worker's tensors, and a file that describes them.

    One thread per device writes. Other threads sync and check what has been written.
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
        tuple(entry for _, group in groups for entry in bundle.entries_of(group)),
        snapshot.own_state,
        _model_checksum(snapshot.model),
    )
    if worker > 0:
        name = f"part-{worker}.json"
        unsigned = files.join(staging, f"{name}.tempstate0")
        files.write_text(unsigned, json.dumps(asdict(part)))
        files.gfile.rename(unsigned, files.join(staging, name), overwrite=True)
    return part


def complete(staging: str, snapshot: Snapshot, parts: list[Part]) -> Manifest:
    """Merges the bundles of all parts and writes the other files; returns the manifest.

    Raises:
        DifferentModels: If workers do not train the same model.
    """
    for part in parts[1:]:
        if part.model and parts[0].model and part.model != parts[0].model:
            raise DifferentModels(part.worker)
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


class DifferentModels(Exception):
    """Workers that train together have different models."""

    def __init__(self, worker: int) -> None:
        super().__init__(
            f"worker {worker} trains a different model than worker 0. TensorFlow sums their "
            "gradients anyway, because their variables have the same shapes. Give every worker "
            "the same model"
        )


def _model_checksum(model: str | None) -> int:
    """Ignores numbers at the end of names, which depend on what else a process has created."""
    return 0 if model is None else zlib.crc32(re.sub(r'_\d+"', '"', model).encode())


def _finish_file(folder: str, name: str) -> FileEntry:
    """Computes the checksum of a file, and waits until it is on disk."""
    path = files.join(folder, name)
    crc32 = files.checksum(path)
    files.sync(path)
    return FileEntry(name, files.size(path), crc32)
