"""SIGTERM as a request: save, then stop. A second one stops at once."""

from __future__ import annotations

import signal
import threading
from typing import Any


class Preempted(SystemExit):
    """Raised in the training thread once the checkpoint is saved; ends the program with 143."""

    def __init__(self, message: str) -> None:
        super().__init__(128 + signal.SIGTERM)
        self.message = message

    def __str__(self) -> str:
        return self.message


class TerminationRequest:
    """Knows whether the process was asked to end, while it listens.

    Signals reach the main thread only; elsewhere it never listens.
    """

    def __init__(self) -> None:
        self.is_made = False
        self._previous: Any = None
        self._listens = False

    def listen(self) -> None:
        if self._listens or threading.current_thread() is not threading.main_thread():
            return
        self.is_made = False
        self._previous = signal.signal(signal.SIGTERM, self._receive)
        self._listens = True

    def stop_listening(self) -> None:
        """Puts the previous handler back."""
        if self._listens and threading.current_thread() is threading.main_thread():
            if signal.getsignal(signal.SIGTERM) == self._receive:
                signal.signal(signal.SIGTERM, self._previous)
            self._listens = False

    def _receive(self, number: int, frame: Any) -> None:
        if not self.is_made:
            self.is_made = True
            return
        self.stop_listening()
        signal.raise_signal(number)
