"""Ensures that only one run saves to a directory."""

from __future__ import annotations

import fcntl
import json
import os
import socket

from keras_mgpu.system import files

FILE_NAME = "run.lock"


class RunLock:
    """A lock that the operating system releases when the process ends, even if it is killed.

    It belongs to the process, so training again in the same process is possible. It does nothing
    on file systems without such locks, such as object stores.
    """

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._file: int | None = None

    def acquire(self) -> None:
        """Takes the lock.

        Raises:
            RuntimeError: If another process holds it.
        """
        local = files.local_path(self._directory)
        if local is None or self._file is not None:
            return
        descriptor = os.open(os.path.join(local, FILE_NAME), os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.read(descriptor, 1000).decode(errors="replace")
            os.close(descriptor)
            raise RuntimeError(
                f"Another run saves its checkpoints in {self._directory} ({holder.strip()}). "
                "Two runs would delete each other's checkpoints. Give each run its own directory."
            ) from error
        os.ftruncate(descriptor, 0)
        os.write(descriptor, json.dumps(_whoami()).encode())
        self._file = descriptor

    def release(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


def _whoami() -> dict[str, str | int]:
    return {"host": socket.gethostname(), "process": os.getpid()}
