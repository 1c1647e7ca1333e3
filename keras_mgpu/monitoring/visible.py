"""Which GPUs are this job's, in the driver's terms.

The driver knows nothing of CUDA_VISIBLE_DEVICES. A GPU is found by its place on the PCI bus, which
TensorFlow tells, or by its UUID; a number is taken only where nothing better is known.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

NO_DEVICE = ("", "-1")


def handles(
    nvml: Any, buses: Sequence[str], environment: Mapping[str, str] = os.environ
) -> list[Any]:
    """The driver's handles of this job's GPUs, in TensorFlow's order.

    Args:
        nvml: The driver's library.
        buses: Places on the PCI bus of the GPUs that TensorFlow has, if it has any.
        environment: Where CUDA_VISIBLE_DEVICES stands.
    """
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    parts = None if visible is None else [part.strip() for part in visible.split(",")]
    if parts is not None and any(part.startswith("MIG-") for part in parts):
        return _listed(nvml, parts)  # Parts of one GPU are all in the same place.
    if buses:
        return [nvml.nvmlDeviceGetHandleByPciBusId(bus.encode()) for bus in buses]
    if parts is not None:
        return _listed(nvml, parts)
    return [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]


def _listed(nvml: Any, parts: Sequence[str]) -> list[Any]:
    """As CUDA reads the list: up to the first entry that is no device."""
    found = []
    for part in parts:
        handle = _one(nvml, part)
        if handle is None:
            break
        found.append(handle)
    return found


def _one(nvml: Any, part: str) -> Any:
    if part in NO_DEVICE:
        return None
    try:
        if part.isdecimal():
            return nvml.nvmlDeviceGetHandleByIndex(int(part))
        if part.startswith("MIG-"):
            return nvml.nvmlDeviceGetHandleByUUID(part.encode())
        return _by_prefix(nvml, part)
    except nvml.NVMLError:
        return None


def _by_prefix(nvml: Any, start: str) -> Any:
    """CUDA lets a UUID be cut short, as long as only one GPU is meant."""
    matches = []
    for index in range(nvml.nvmlDeviceGetCount()):
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        if _text(nvml.nvmlDeviceGetUUID(handle)).startswith(start):
            matches.append(handle)
    return matches[0] if len(matches) == 1 else None


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
