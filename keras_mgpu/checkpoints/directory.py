"""The directory argument that all of the checkpoint functions share."""

from __future__ import annotations

import os
import uuid
from typing import Any

import tensorflow as tf

from keras_mgpu.checkpoints import files


def check_directory(directory: Any) -> str:
    """Returns the directory as a string, or says why it cannot be one."""
    if not isinstance(directory, (str, os.PathLike)):
        raise TypeError(
            "`directory` must be a path. "
            f"Received: directory={directory!r} (of type {type(directory).__name__})"
        )
    path = os.fspath(directory)
    if not path:
        raise ValueError("`directory` must not be empty. Received: directory=''")
    if "://" not in path:
        path = os.path.abspath(path)  # A program may change its working directory later.
    if files.gfile.exists(path) and not files.gfile.isdir(path):
        raise ValueError(
            f"`directory` is a file, and checkpoints need a folder. Received: directory={path!r}"
        )
    return path


def make_directory(directory: str) -> None:
    """Makes the directory, and sees whether it can be written to.

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
        raise PermissionError(
            f"Checkpoints cannot be written to {directory}: {error.message}"
        ) from error
