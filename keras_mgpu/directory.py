"""Directories that users name: for checkpoints, and for logs."""

from __future__ import annotations

import os
import uuid
from typing import Any

import tensorflow as tf

from keras_mgpu import files


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
    if files.gfile.exists(path) and not files.gfile.isdir(path):
        raise ValueError(f"`{name}` is a file, and a folder is needed. Received: {name}={path!r}")
    return path


def make_directory(directory: str) -> None:
    """Makes a directory, and sees whether it can be written to.

    Raises:
        PermissionError: If it cannot.
    """
    probe = files.join(directory, f".writable-{uuid.uuid4().hex}")
    try:
        files.gfile.makedirs(directory)
        with files.gfile.GFile(probe, "w") as file:
            file.write("")
        files.remove(probe)
    except tf.errors.OpError as error:
        raise PermissionError(f"Cannot write to {directory}: {error.message}") from error
