"""What a checkpoint says of itself: one JSON file that names everything else in its folder.

The manifest carries the checksum of every other file, and one of its own. Reading it needs nothing
but Python, so that a checkpoint can be looked at where no TensorFlow is.
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
    """A file of a checkpoint is not what was written."""


@dataclass(frozen=True)
class FileEntry:
    """A file of the checkpoint, by its name in the folder."""

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
    """Everything a checkpoint says of itself.

    Args:
        step: Training steps taken when it was saved.
        epoch: The epoch that was running or, if `batch` is 0, is to begin.
        batch: Batches of that epoch that were trained.
        values: The logs that came with it, such as `{"val_loss": 0.3}`.
        created: When it was saved, in UTC. For people: nothing is ordered by it.
        topology: Strategy, workers and devices that wrote it. Also for people.
        plan: The `PartitionPlan` as JSON, if a `PipelineSplit` wrote it.
        schedule: Its `Schedule` as JSON.
        tensors: What the bundle holds.
        files: Every other file of the folder that belongs to the checkpoint.
        version: Of this format.
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
        """Size of all files that the manifest names."""
        return sum(file.num_bytes for file in self.files)

    def to_json(self) -> str:
        fields = asdict(self)
        return json.dumps({"crc32": _checksum(fields), "manifest": fields}, indent=1)

    @classmethod
    def from_json(cls, text: str) -> Manifest:
        """Reads a manifest, and refuses one that is damaged, newer, or points out of its folder.

        Raises:
            DamagedError: If the text is not what was written.
            ValueError: If the manifest is intact, but must not be followed.
        """
        try:
            outer = json.loads(text)
            fields, checksum = outer["manifest"], outer["crc32"]
        except (KeyError, TypeError, ValueError) as error:
            raise DamagedError(f"{FILE_NAME} is no manifest of a checkpoint ({error})") from error
        if not isinstance(fields, dict) or _checksum(fields) != checksum:
            raise DamagedError(f"{FILE_NAME}: checksum does not match")
        if fields["version"] > VERSION:
            raise ValueError(
                f"The checkpoint was written by a newer keras_mgpu: its format has version "
                f"{fields['version']}, this one reads versions up to {VERSION}. Update the "
                "package: `pip install --upgrade keras-mgpu`."
            )
        try:
            fields["tensors"] = tuple(
                TensorEntry(each["key"], tuple(each["shape"]), each["dtype"])
                for each in fields["tensors"]
            )
            fields["files"] = tuple(FileEntry(**each) for each in fields["files"])
            manifest = cls(**fields)
        except (KeyError, TypeError) as error:
            raise DamagedError(f"{FILE_NAME} lacks what a manifest has ({error})") from error
        for file in manifest.files:
            _check_stays_inside(file.name)
        return manifest


def _check_stays_inside(name: str) -> None:
    parts = name.replace("\\", "/").split("/")
    if not name or len(parts) > 1 or name in (".", "..") or ":" in name or "\0" in name:
        raise ValueError(
            "A manifest may only name files of its own folder; this one is not followed. "
            f"Received: file name {name!r}"
        )


def _checksum(fields: Mapping[str, Any]) -> int:
    return zlib.crc32(json.dumps(fields, sort_keys=True).encode())
