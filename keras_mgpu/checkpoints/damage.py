"""What is wrong with a checkpoint: files that are missing, cut short, or changed."""

from __future__ import annotations

from collections.abc import Callable

from keras_mgpu.checkpoints import bundle
from keras_mgpu.checkpoints.manifest import FileEntry
from keras_mgpu.checkpoints.store import BUNDLE, Entry, read_manifest
from keras_mgpu.system import files


def damages(
    entry: Entry, progress: Callable[[int], None] = lambda num_bytes: None, full: bool = True
) -> list[str]:
    """Everything that is wrong with a checkpoint, one line each.

    Args:
        entry: The checkpoint.
        progress: Called with the number of bytes read, each time.
        full: Whether to read every byte. `False` checks sizes only.
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
            found.append(f"unreadable tensors: {_some(keys)}")
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


def _some(keys: list[str]) -> str:
    more = f" and {len(keys) - 5} more" if len(keys) > 5 else ""
    return ", ".join(keys[:5]) + more
