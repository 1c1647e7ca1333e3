"""What a source of measurements is. Another vendor's GPUs are one more file with one of these."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from keras_mgpu.monitoring.series import Sample


class Source(Protocol):
    """Gives samples of its devices whenever it is asked, always from the same thread.

    What it cannot give it leaves out, and says so once. It never raises because of a device.
    """

    @property
    def devices(self) -> Sequence[str]:
        """Names of its devices, such as `"gpu_0"`."""

    def sample(self) -> list[Sample]:
        """Everything measured since it was last asked."""

    def close(self) -> None:
        """Gives back what it holds."""
