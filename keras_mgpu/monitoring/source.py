"""What a source of measurements is. Another vendor's GPUs are one more file with one of these."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from keras_mgpu.monitoring.series import Sample, Samples

# After each device, for the training thread: it would wait for the interpreter otherwise.
BREAK_SECONDS = 0.0003


class Due(NamedTuple):
    """What it is time to ask for.

    Args:
        momentary: What is lost if it is not asked for: the state of this moment.
        kept: What somebody has kept since the last time, such as the driver's ring of samples.
    """

    momentary: bool = True
    kept: bool = True

    @property
    def slow(self) -> bool:
        """What moves slowly, loses nothing, or takes long to read: `catalogue.SLOW`."""
        return self.momentary and self.kept


class Source(Protocol):
    """Gives samples of its devices whenever it is asked, always from the same thread.

    What it cannot give it leaves out, and says so once. It never raises because of a device.
    """

    @property
    def devices(self) -> Sequence[str]:
        """Names of its devices, such as `"gpu_0"`."""

    def sample(self, due: Due) -> Sequence[Sample | Samples]:
        """Everything that is due."""

    def close(self) -> None:
        """Gives back what it holds."""
