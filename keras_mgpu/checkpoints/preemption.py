"""SIGTERM as a request: save, then stop. A second one stops at once."""

from __future__ import annotations

import signal
import threading
import types
from typing import Any

from keras_mgpu.system import files
from keras_mgpu.system.cluster import Workers

FILE_NAME = "stop.step"


class Preempted(SystemExit):
    """Raised in the training thread once the checkpoint is saved; ends the program with 143."""

    def __init__(self, message: str) -> None:
        super().__init__(128 + signal.SIGTERM)
        self.message = message

    def __str__(self) -> str:
        return self.message


class StopRequest:
    """Knows whether a run was asked to end, and after which step it does.

    Of several workers, all must stop after the same step. The one that is asked writes down the
    next step before it takes it. As no worker can finish that step without the others, all of
    them read it by then.

    Args:
        directory: Where workers leave word for one another.
        workers: Who trains together.
    """

    def __init__(self, directory: str, workers: Workers) -> None:
        self._path = files.join(directory, FILE_NAME)
        self._workers = workers
        self._signal = _Sigterm()

    def listen(self, trainer: types.CodeType | None) -> None:
        """Takes signals as requests as long as `trainer` runs.

        Signals reach the main thread only; in any other, nothing is changed.
        """
        if self._workers.is_first:
            files.remove(self._path)
        self._signal.listen(trainer)

    def stop_listening(self) -> None:
        """Puts the previous handler back; hands on to it what came too late to be seen."""
        self._signal.stop_listening()

    def is_due(self, step: int) -> bool:
        """Whether to save and stop, now that `step` steps are done."""
        if self._workers.count == 1:
            return self._signal.came
        if files.gfile.exists(self._path):
            return step >= int(files.read_text(self._path) or step + 1)
        if self._signal.came:
            files.write_text(self._path, str(step + 1))
        return False

    def answered(self) -> None:
        """The request was followed."""
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
        # An error may have ended training without a word to any callback.
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
