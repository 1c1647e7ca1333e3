"""A directory of checkpoints: listing, adding and deleting them.

```
checkpoints/
  000007-step-700/         a complete checkpoint: only complete ones have such a name
    manifest.json          lists every other file with its checksum
    variables.index        the tensors, in TensorFlow's bundle format
    variables.data-00000-of-00001
    state.json             position in the data, history, state of the callbacks
    model.json             the model's Keras configuration, to export a .keras file
  .000008-step-800.partial/   a checkpoint that is being written
  damaged-000006-step-600/    a checkpoint that was found to be damaged
  run.lock                 held by the process that trains
```

Where folders cannot be renamed atomically, files are moved one by one and the manifest last, so a
checkpoint is complete when it has a manifest.

The first number counts saves. Checkpoints are not ordered by time, as clocks can be set back, nor
by step, as a step can be reached twice.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import tensorflow as tf

from keras_mgpu.checkpoints import manifest
from keras_mgpu.checkpoints.manifest import DamagedError, Manifest
from keras_mgpu.system import files

BUNDLE = "variables"
STATE = "state.json"
MODEL = "model.json"
CONDEMNED = "manifest.deleted.json"
ATTEMPT = "attempt.json"
_NAME = re.compile(r"(\d{6,})-step-(\d+)")
_OUR_FILES = re.compile(
    rf"({BUNDLE}|part-\d+-\d+)\.(index|data-\d{{5}}-of-\d{{5}})(\.tempstate\d+)?"
    rf"|part-\d+\.json(\.tempstate0)?|{STATE}|{MODEL}|{ATTEMPT}|{manifest.FILE_NAME}|{CONDEMNED}"
)


@dataclass(frozen=True)
class Entry:
    """A checkpoint in a store."""

    name: str
    path: str
    step: int


class Store:
    """The checkpoints of one directory."""

    def __init__(self, directory: str) -> None:
        self.directory = directory

    def entries(self) -> list[Entry]:
        """All checkpoints in the order of saving. They are not checked."""
        found = []
        for name in files.names_in(self.directory):
            match = _NAME.fullmatch(name)
            path = files.join(self.directory, name)
            # A folder with other files only is what remains of a deleted checkpoint.
            ours = [each for each in files.names_in(path) if _is_ours(each)] if match else []
            if match and ours and CONDEMNED not in ours:
                found.append(Entry(name, path, int(match[2])))
        return sorted(found, key=lambda entry: int(entry.name.split("-")[0]))

    def find(self, step: int) -> Entry:
        """The newest checkpoint of a step.

        Raises:
            ValueError: If there is none.
        """
        entries = self.entries()
        for entry in reversed(entries):
            if entry.step == step:
                return entry
        steps = ", ".join(str(entry.step) for entry in entries) or "none"
        raise ValueError(
            f"{self.directory} has no checkpoint of this step. Available steps: {steps}. "
            f"Received: step={step}"
        )

    def staging(self, step: int) -> str:
        """The path of the folder to write the next checkpoint to."""
        numbers = [
            int(match[1])
            for match in map(_NAME.search, files.names_in(self.directory))
            if match is not None
        ]
        return files.join(self.directory, f".{max(numbers, default=0) + 1:06d}-step-{step}.partial")

    def stagings(self, step: int | None = None) -> list[str]:
        """Folders of incomplete checkpoints, the newest last."""
        ending = ".partial" if step is None else f"-step-{step}.partial"
        return [
            files.join(self.directory, name)
            for name in files.names_in(self.directory)
            if name.startswith(".") and name.endswith(ending)
        ]

    def commit(self, staging: str, written: Manifest) -> str:
        """Gives a folder its final name when all of it is on disk; returns the path."""
        files.write_text(files.join(staging, manifest.FILE_NAME), written.to_json())
        files.sync(staging)
        path = files.join(self.directory, final_name(staging))
        files.move_folder(staging, path, last=manifest.FILE_NAME)
        files.sync(self.directory)
        return path

    def delete(self, entry: Entry) -> None:
        """Deletes the files in a checkpoint's manifest, and the folder if it is then empty.

        The manifest is renamed first, so that an interrupted deletion can be continued.
        """
        marked = files.join(entry.path, CONDEMNED)
        files.gfile.rename(files.join(entry.path, manifest.FILE_NAME), marked)
        self._finish_delete(entry.path)

    def set_aside(self, entry: Entry) -> str | None:
        """Renames a damaged checkpoint; returns its new path, or `None` if that fails."""
        path = files.join(self.directory, f"damaged-{entry.name}")
        try:
            files.move_folder(entry.path, path, last=manifest.FILE_NAME)
        except tf.errors.OpError:
            return None
        return path

    def clean(self) -> None:
        """Removes what was left by a run that ended while it saved or deleted."""
        for staging in self.stagings():
            moved = files.join(self.directory, final_name(staging))
            if not files.gfile.exists(files.join(moved, manifest.FILE_NAME)):
                discard(moved)  # It may have been moved file by file, and only in part.
            discard(staging)
        for name in files.names_in(self.directory):
            path = files.join(self.directory, name)
            if _NAME.fullmatch(name) and files.gfile.exists(files.join(path, CONDEMNED)):
                self._finish_delete(path)

    def _finish_delete(self, path: str) -> None:
        marked = files.join(path, CONDEMNED)
        try:
            names = [file.name for file in Manifest.from_json(files.read_text(marked)).files]
        except DamagedError:
            names = [name for name in files.names_in(path) if _is_ours(name)]
        for name in [*names, CONDEMNED]:
            files.remove(files.join(path, name))
        files.remove_empty(path)


def _is_ours(name: str) -> bool:
    return _OUR_FILES.fullmatch(name) is not None


def read_manifest(path: str) -> Manifest:
    """The manifest of the checkpoint at `path`.

    Raises:
        DamagedError: If it is missing or damaged.
        ValueError: If it is not accepted.
    """
    try:
        text = files.read_text(files.join(path, manifest.FILE_NAME))
    except (tf.errors.OpError, UnicodeDecodeError) as error:
        raise DamagedError(f"{manifest.FILE_NAME} cannot be read ({error})") from error
    return Manifest.from_json(text)


def final_name(staging: str) -> str:
    """The name of a staging folder when it is complete."""
    return staging.rsplit("/", 1)[-1].removeprefix(".").removesuffix(".partial")


def discard(staging: str) -> None:
    """Removes our files from the folder of an incomplete checkpoint."""
    for name in files.names_in(staging):
        if _is_ours(name):
            files.remove(files.join(staging, name))
    if files.gfile.isdir(staging):
        files.remove_empty(staging)


def parse_path(path: str) -> Entry | None:
    """The checkpoint at `path`; `None` if it does not have the name of one."""
    path = path.rstrip("/")
    name = path.rsplit("/", 1)[-1]
    match = _NAME.fullmatch(name)
    return None if match is None else Entry(name, path, int(match[2]))
