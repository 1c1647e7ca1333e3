"""NVIDIA's driver library (NVML), for single questions.

Needs the package `nvidia-ml-py` (the extra `nvidia`). Without it, or without a driver, nothing is
known.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def nvidia_driver() -> Iterator[Any]:
    """Yields the driver's library, or `None` if it is missing or does not answer.

    An error of the library ends the block, silently.
    """
    try:
        import pynvml
    except ImportError:
        yield None
        return
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        yield None
        return
    try:
        yield pynvml
    except pynvml.NVMLError:
        return
    finally:
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


def driver_version() -> str:
    """The version of the driver; `""` if it is not known."""
    with nvidia_driver() as nvml:
        if nvml is not None:
            version = nvml.nvmlSystemGetDriverVersion()
            return version.decode() if isinstance(version, bytes) else str(version)
    return ""
