"""How long a worker waits for others during a save."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence

from keras_mgpu.system.cluster import is_unreachable

logger = logging.getLogger("keras_mgpu")
ENDING_SECONDS = 20.0  # How long to wait once the main thread has ended.
PING_SECONDS = 2.0
MAX_MISSED_PINGS = 3
WARN_SECONDS = 15.0


class Patience:
    """Limits the time to wait for other workers.

    It ends early for a worker that has died, and if this process is about to end with an error.

    Args:
        seconds: The longest time to wait.
        names: The workers to wait for.
    """

    def __init__(self, seconds: float, names: Sequence[str]) -> None:
        self._seconds, self._names = seconds, names
        self._until = time.monotonic() + seconds
        self._next_ping = time.monotonic() + PING_SECONDS
        self._warn_at = time.monotonic() + min(WARN_SECONDS, seconds / 2)
        self._is_ending = False
        self._missed = dict.fromkeys(names, 0)

    def lasts(self) -> bool:
        """Whether to continue waiting."""
        now = time.monotonic()
        if not self._is_ending and not threading.main_thread().is_alive():
            self._is_ending = True
            self._until = min(self._until, now + ENDING_SECONDS)
        if now > self._warn_at:
            self._warn_at = float("inf")
            names = ", ".join(self._names)
            logger.warning("A checkpoint waits for %s (at most %g seconds).", names, self._seconds)
        if now > self._next_ping:
            self._next_ping = now + PING_SECONDS
            for name in self._names:
                self._missed[name] = self._missed[name] + 1 if is_unreachable(name) else 0
        return now < self._until and max(self._missed.values()) < MAX_MISSED_PINGS

    @property
    def end(self) -> str:
        """Why it ended, as a clause about the worker."""
        if max(self._missed.values()) >= MAX_MISSED_PINGS:
            return "its process cannot be reached any more"
        if any(map(is_unreachable, self._names)):
            return f"it had {self._seconds:g} seconds, and seems to have died"
        return (
            f"it had {self._seconds:g} seconds. If its process is running, it has no "
            "DistributedCheckpoint, or one that saves elsewhere or at other steps. Give every "
            "worker the same one"
        )
