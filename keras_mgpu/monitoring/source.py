"""What a source of samples is. GPUs of another vendor are one more file with such a class."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from keras_mgpu.monitoring.series import Sample, Samples

# A pause after each device: otherwise the training thread would wait for the interpreter lock.
PAUSE_SECONDS = 0.0003


class Due(NamedTuple):
    """What a poll should read.

    Args:
        momentary: Values that are lost unless they are read now.
        kept: Values that something else keeps until they are read, such as the driver's rings of
            samples.
    """

    momentary: bool = True
    kept: bool = True

    @property
    def slow(self) -> bool:
        """Whether to read what is read once per second at most: `Pace.ONCE_PER_SECOND`."""
        return self.momentary and self.kept


class Source(Protocol):
    """Gives samples of its devices when it is polled, always from the same thread.

    A source leaves out what it cannot read and logs that once. It never raises because of a
    device.
    """

    def sample(self, due: Due) -> Sequence[Sample | Samples]:
        """Reads everything that is due."""

    def close(self) -> None:
        """Releases what it holds."""
