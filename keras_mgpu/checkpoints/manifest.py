"""The manifest of a checkpoint: a JSON file that lists all other files in its folder.

It holds the checksum of every other file, and one of its own. Reading it does not need TensorFlow.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

VERSION = 1
FILE_NAME = "manifest.json"


class DamagedError(ValueError):
    """A file of a checkpoint is missing or has changed."""


@dataclass(frozen=True)
class FileEntry:
    """A file of the checkpoint, by name."""

    name: str
    num_bytes: int
    crc32: int


@dataclass(frozen=True)
class TensorEntry:
    """A saved tensor, by its key in the bundle."""

    key: str
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class Manifest:
    """Describes a checkpoint.

    Args:
        step: Training steps taken when it was saved.
        epoch: The epoch that was running or, if `batch` is 0, the next one.
        batch: Batches of that epoch that were trained.
        values: The logs saved with it, such as `{"val_loss": 0.3}`.
        created: When it was saved, in UTC. Only for information.
        topology: Strategy, workers and devices that wrote it. Only for information.
        plan: The `PartitionPlan` as JSON, if a `PipelineSplit` wrote it.
        schedule: Its `Schedule` as JSON.
        tensors: The tensors in the bundle.
        files: All other files of the checkpoint.
        version: Version of this format.
    """

    step: int
    epoch: int
    batch: int
    values: Mapping[str, float]
    created: str
    topology: Mapping[str, Any]
    plan: Mapping[str, Any] | None = None
    schedule: Mapping[str, Any] | None = None
    tensors: tuple[TensorEntry, ...] = ()
    files: tuple[FileEntry, ...] = ()
    version: int = field(default=VERSION)

    @property
    def num_bytes(self) -> int:
        """Size of all files in the manifest."""
        return sum(file.num_bytes for file in self.files)

    def to_json(self) -> str:
        fields = asdict(self)
        return json.dumps({"crc32": _checksum(fields), "manifest": fields}, indent=1)

    @classmethod
    def from_json(cls, text: str) -> Manifest:
        """Reads a manifest. Refuses one that is damaged, newer, or names files elsewhere.

        Raises:
            DamagedError: If the text has changed.
            ValueError: If the manifest is intact, but not accepted.
        """
        try:
            outer = json.loads(text)
            fields, checksum = outer["manifest"], outer["crc32"]
        except (KeyError, TypeError, ValueError) as error:
            raise DamagedError(f"{FILE_NAME} is not a checkpoint manifest ({error})") from error
        if not isinstance(fields, dict) or _checksum(fields) != checksum:
            raise DamagedError(f"{FILE_NAME}: checksum does not match")
        if fields["version"] > VERSION:
            raise ValueError(
                f"The checkpoint was written by a newer keras_mgpu. Its format has version "
                f"{fields['version']}, and this package reads versions up to {VERSION}. Upgrade "
                "the package: `pip install --upgrade keras-mgpu`."
            )
        try:
            fields["tensors"] = tuple(
                TensorEntry(each["key"], tuple(each["shape"]), each["dtype"])
                for each in fields["tensors"]
            )
            fields["files"] = tuple(FileEntry(**each) for each in fields["files"])
            manifest = cls(**fields)
        except (KeyError, TypeError) as error:
            raise DamagedError(f"{FILE_NAME} lacks a field ({error})") from error
        for file in manifest.files:
            _check_stays_inside(file.name)
        return manifest


def _check_stays_inside(name: str) -> None:
    parts = name.replace("\\", "/").split("/")
    if not name or len(parts) > 1 or name in (".", "..") or ":" in name or "\0" in name:
        raise ValueError(
            "The manifest of a checkpoint may only name files of its own folder. "
            f"Received: name={name!r}"
        )


def _checksum(fields: Mapping[str, Any]) -> int:
    return zlib.crc32(json.dumps(fields, sort_keys=True).encode())
