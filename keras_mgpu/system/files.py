"""Files wherever `tf.io.gfile` reaches, made durable where the system can do so.

`tf.io.gfile` can write, rename and list almost anywhere, but it cannot wait until the disk has the
bytes. For files of this machine the operating system can; other file systems have them when a
file is closed.
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
CHUNK = 256 << 10  # Stays in the processor's cache between reading and reckoning.


def join(*parts: str) -> str:
    return posixpath.join(*parts)


def write_text(path: str, text: str) -> None:
    """Writes a small file, and returns when it is on disk."""
    with gfile.GFile(path, "w") as file:
        file.write(text)
    sync(path)


def read_text(path: str) -> str:
    with gfile.GFile(path, "rb") as file:
        return file.read().decode("utf-8")


def sync(path: str) -> None:
    """Returns when a file, or a folder's list of names, is on disk."""
    local = local_path(path)
    if local is None:
        return
    descriptor = os.open(local, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def checksum(path: str, progress: Callable[[int], None] = lambda num_bytes: None) -> int:
    """The crc32 of a file. `progress` is told how many bytes were read each time."""
    value = 0
    local = local_path(path)
    if local is None:
        with gfile.GFile(path, "rb") as file:
            while chunk := file.read(CHUNK):
                value = zlib.crc32(chunk, value)
                progress(len(chunk))
        return value
    buffer = memoryview(bytearray(CHUNK))
    with open(local, "rb", buffering=0) as file:
        while count := file.readinto(buffer):
            value = zlib.crc32(buffer[:count], value)
            progress(count)
    return value


def size(path: str) -> int:
    return int(gfile.stat(path).length)


def names_in(folder: str) -> list[str]:
    """Sorted names; a folder that is not there has none."""
    if not gfile.isdir(folder):
        return []
    return sorted(name.rstrip("/") for name in gfile.listdir(folder))


def remove(path: str) -> None:
    """Removes a file that may be gone already."""
    if gfile.exists(path):
        gfile.remove(path)


def remove_empty(folder: str) -> bool:
    """Removes a folder if nothing is in it; returns whether it did."""
    if names_in(folder):
        return False
    gfile.rmtree(folder)
    return True


def move_folder(source: str, target: str, last: str) -> None:
    """Gives a folder another name: at once, or file by file where that cannot be done.

    Of the file systems of other machines, none promises to rename a folder at once, and some
    cannot at all. There the file called `last` comes last, and shows that all others are there.
    """
    if local_path(source) is not None:
        gfile.rename(source, target)
        return
    gfile.makedirs(target)
    for name in sorted(names_in(source), key=lambda name: name == last):
        gfile.rename(join(source, name), join(target, name))
    gfile.rmtree(source)


def local_path(path: str) -> str | None:
    """The path as the operating system knows it, or `None` if it is not of this machine."""
    if path.startswith("file://"):
        return path.removeprefix("file://")
    return None if "://" in path else path


def check_directory(directory: Any, name: str = "directory") -> str:
    """Returns a directory as a string, or says why it cannot be one.

    Args:
        directory: What the user gave.
        name: What the user calls it.
    """
    if not isinstance(directory, (str, os.PathLike)):
        raise TypeError(
            f"`{name}` must be a path. "
            f"Received: {name}={directory!r} (of type {type(directory).__name__})"
        )
    path = os.fspath(directory)
    if not path:
        raise ValueError(f"`{name}` must not be empty. Received: {name}=''")
    if "://" not in path:
        path = os.path.abspath(path)  # A program may change its working directory later.
    if gfile.exists(path) and not gfile.isdir(path):
        raise ValueError(f"`{name}` is a file, and a folder is needed. Received: {name}={path!r}")
    return path


def make_directory(directory: str) -> None:
    """Makes a directory, and sees whether it can be written to.

    Raises:
        PermissionError: If it cannot.
    """
    marker = join(directory, f".writable-{uuid.uuid4().hex}")
    try:
        gfile.makedirs(directory)
        with gfile.GFile(marker, "w") as file:
            file.write("")
        remove(marker)
    except tf.errors.OpError as error:
        raise PermissionError(f"Cannot write to {directory}: {error.message}") from error
