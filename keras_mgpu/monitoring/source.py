"""What a source of measurements is. Another vendor's GPUs are one more file with one of these."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from keras_mgpu.monitoring.series import Sample

# After each device, for the training thread: it would wait for the interpreter otherwise.
BREAK_SECONDS = 0.0003


class Source(Protocol):
    """Gives samples of its devices whenever it is asked, always from the same thread.

    What it cannot give it leaves out, and says so once. It never raises because of a device.
    """

    @property
    def devices(self) -> Sequence[str]:
        """Names of its devices, such as `"gpu_0"`."""

    def sample(self, slow_too: bool) -> list[Sample]:
        """Everything measured since it was last asked; slow metrics only if they are due."""

    def close(self) -> None:
        """Gives back what it holds."""
