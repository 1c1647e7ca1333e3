"""Files and directories, wherever `tf.io.gfile` can reach them.

`tf.io.gfile` can write, rename and list almost anywhere, but it cannot wait until the bytes are on
disk. For local files, the operating system can. On other file systems, files are considered durable
once they are closed.
"""

from __future__ import annotations

import os
import posixpath
import uuid
import zlib
from collections.abc import Callable
from typing import Any

import tensorflow as tf

gfile = tf.io.gfile
CHUNK = 256 << 10  # Fits into the CPU cache while its checksum is computed.

# Paths.


def join(*parts: str) -> str:
    return posixpath.join(*parts)


def local_path(path: str) -> str | None:
    """Returns the path for the operating system, or `None` if it is not on this machine."""
    if path.startswith("file://"):
        return path.removeprefix("file://")
    return None if "://" in path else path


# Files.


def write_text(path: str, text: str) -> None:
    """Writes a small file and waits until it is on disk."""
    with gfile.GFile(path, "w") as file:
        file.write(text)
    sync(path)


def read_text(path: str) -> str:
    with gfile.GFile(path, "rb") as file:
        text: str = file.read().decode("utf-8")
    return text


def size(path: str) -> int:
    return int(gfile.stat(path).length)


def remove(path: str) -> None:
    """Removes a file, if it exists."""
    if gfile.exists(path):
        gfile.remove(path)


def sync(path: str) -> None:
    """Waits until a file, or the listing of a folder, is on disk."""
    local = local_path(path)
    if local is None:
        return
    descriptor = os.open(local, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def checksum(path: str, progress: Callable[[int], None] = lambda num_bytes: None) -> int:
    """Returns the crc32 of a file.

    Args:
        path: The file.
        progress: Called with the number of bytes read, after each chunk.
    """
    local = local_path(path)
    if local is None:
        return _remote_checksum(path, progress)
    value = 0
    buffer = memoryview(bytearray(CHUNK))
    with open(local, "rb", buffering=0) as file:
        while count := file.readinto(buffer):
            value = zlib.crc32(buffer[:count], value)
            progress(count)
    return value


def _remote_checksum(path: str, progress: Callable[[int], None]) -> int:
    value = 0
    with gfile.GFile(path, "rb") as file:
        while chunk := file.read(CHUNK):
            value = zlib.crc32(chunk, value)
            progress(len(chunk))
    return value


# Folders.


def names_in(folder: str) -> list[str]:
    """Returns the sorted names in a folder. A folder that does not exist has none."""
    if not gfile.isdir(folder):
        return []
    return sorted(name.rstrip("/") for name in gfile.listdir(folder))


def remove_empty(folder: str) -> bool:
    """Removes a folder if it is empty, and returns whether it was."""
    if names_in(folder):
        return False
    gfile.rmtree(folder)
    return True


def move_folder(source: str, target: str, last: str) -> None:
    """Renames a folder, atomically if the file system is local.

    Remote file systems do not rename folders atomically, and some not at all. There, files are
    moved one by one, and the file called `last` comes last to show that all others are complete.
    """
    if local_path(source) is not None:
        gfile.rename(source, target)
        return
    gfile.makedirs(target)
    for name in sorted(names_in(source), key=lambda name: name == last):
        gfile.rename(join(source, name), join(target, name))
    gfile.rmtree(source)


# Directories given by users.


def check_directory(directory: Any, name: str = "directory") -> str:
    """Returns a directory as a string, after checking that it can be one.

    Args:
        directory: The path, as given by the user.
        name: The name of the user's argument, for error messages.

    Raises:
        TypeError: If `directory` is not a path.
        ValueError: If `directory` is empty, or an existing file.
    """
    if not isinstance(directory, (str, os.PathLike)):
        raise TypeError(
            f"`{name}` must be a path. "
            f"Received: {name}={directory!r} (of type {type(directory).__name__})"
        )
    path: str = os.fspath(directory)
    if not path:
        raise ValueError(f"`{name}` must not be empty. Received: {name}=''")
    if "://" not in path:
        path = os.path.abspath(path)  # The program may change its working directory later.
    if gfile.exists(path) and not gfile.isdir(path):
        raise ValueError(f"`{name}` is a file, but must be a directory. Received: {name}={path!r}")
    return path


def make_directory(directory: str) -> None:
    """Creates a directory and checks that it is writable.

    Raises:
        PermissionError: If it cannot be created or is not writable.
    """
    marker = join(directory, f".writable-{uuid.uuid4().hex}")
    try:
        gfile.makedirs(directory)
        with gfile.GFile(marker, "w") as file:
            file.write("")
        remove(marker)
    except tf.errors.OpError as error:
        raise PermissionError(f"Cannot write to {directory}: {error.message}") from error
