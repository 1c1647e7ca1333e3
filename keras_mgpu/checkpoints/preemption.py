"""Handles SIGTERM: save, then stop. A second SIGTERM stops immediately."""

from __future__ import annotations

import signal
import threading
import types
from typing import Any

from keras_mgpu.system import files
from keras_mgpu.system.cluster import Workers

FILE_NAME = "stop.step"


class Preempted(SystemExit):
    """Raised in the training thread after saving; ends the program with exit code 143."""

    def __init__(self, message: str) -> None:
        super().__init__(128 + signal.SIGTERM)
        self.message = message

    def __str__(self) -> str:
        return self.message


class StopRequest:
    """Knows whether a run was asked to stop, and after which step.

    All workers must stop after the same step. The worker that receives the signal writes the number
    of the next step to a file before it takes that step. No worker can finish the step without the
    others, so all of them read the file in time.

    Args:
        directory: Where workers exchange this file.
        workers: The workers that train together.
    """

    def __init__(self, directory: str, workers: Workers) -> None:
        self._path = files.join(directory, FILE_NAME)
        self._workers = workers
        self._signal = _Sigterm()

    def listen(self, trainer: types.CodeType | None) -> None:
        """Handles signals while `trainer` runs.

        Only the main thread can do so. In other threads, this does nothing.
        """
        if self._workers.is_first:
            files.remove(self._path)
        self._signal.listen(trainer)

    def stop_listening(self) -> None:
        """Restores the previous handler, and passes on a signal that came too late."""
        self._signal.stop_listening()

    def is_due(self, step: int) -> bool:
        """Whether to save and stop after `step` steps."""
        if self._workers.count == 1:
            return self._signal.came
        if files.gfile.exists(self._path):
            return step >= int(files.read_text(self._path) or step + 1)
        if self._signal.came:
            files.write_text(self._path, str(step + 1))
        return False

    def answered(self) -> None:
        """Marks the request as done."""
        self._signal.came = False


class _Sigterm:
    def __init__(self) -> None:
        self.came = False
        self._previous: Any = None
        self._listens = False
        self._trainer: types.CodeType | None = None

    def listen(self, trainer: types.CodeType | None) -> None:
        if self._listens or threading.current_thread() is not threading.main_thread():
            return
        self.came, self._trainer = False, trainer
        self._previous = signal.signal(signal.SIGTERM, self._receive)
        self._listens = True

    def stop_listening(self) -> None:
        if not self._listens or threading.current_thread() is not threading.main_thread():
            return
        if signal.getsignal(signal.SIGTERM) == self._receive:
            signal.signal(signal.SIGTERM, self._previous)
        self._listens = False
        if self.came:
            signal.raise_signal(signal.SIGTERM)

    def _receive(self, number: int, frame: types.FrameType | None) -> None:
        # An error may have ended training without notice to any callback.
        is_first = not self.came and self._is_running(frame)
        self.came = True
        if not is_first:
            self.stop_listening()

    def _is_running(self, frame: types.FrameType | None) -> bool:
        if self._trainer is None:
            return True
        while frame is not None:
            if frame.f_code is self._trainer:
                return True
            frame = frame.f_back
        return False
