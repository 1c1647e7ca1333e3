"""Which GPUs this job may use, as the driver names them.

The driver does not know CUDA_VISIBLE_DEVICES. A GPU is found by its PCI bus ID, which TensorFlow
reports, or by its UUID. Its index is used only where neither is known.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

NO_DEVICE = ("", "-1")


def handles_of(
    nvml: Any, buses: Sequence[str], environment: Mapping[str, str] = os.environ
) -> list[Any]:
    """The driver's handles of this job's GPUs, in TensorFlow's order.

    Args:
        nvml: The driver's library.
        buses: PCI bus IDs of the GPUs that TensorFlow sees, if it sees any.
        environment: The environment variables, for CUDA_VISIBLE_DEVICES.
    """
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    entries = None if visible is None else [entry.strip() for entry in visible.split(",")]
    if entries is not None and any(entry.startswith("MIG-") for entry in entries):
        return _listed(nvml, entries)  # All MIG devices of a GPU have the same bus ID.
    if buses:
        return [nvml.nvmlDeviceGetHandleByPciBusId(bus.encode()) for bus in buses]
    if entries is not None:
        return _listed(nvml, entries)
    return [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]


def _listed(nvml: Any, entries: Sequence[str]) -> list[Any]:
    """Reads the list as CUDA does: up to the first entry that is not a device."""
    found = []
    for entry in entries:
        handle = _handle(nvml, entry)
        if handle is None:
            break
        found.append(handle)
    return found


def _handle(nvml: Any, entry: str) -> Any:
    if entry in NO_DEVICE:
        return None
    try:
        if entry.isdecimal():
            return nvml.nvmlDeviceGetHandleByIndex(int(entry))
        if entry.startswith("MIG-"):
            return nvml.nvmlDeviceGetHandleByUUID(entry.encode())
        return _by_uuid_prefix(nvml, entry)
    except nvml.NVMLError:
        return None


def _by_uuid_prefix(nvml: Any, prefix: str) -> Any:
    """CUDA accepts the beginning of a UUID if only one GPU matches."""
    matches = []
    for index in range(nvml.nvmlDeviceGetCount()):
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        if _text(nvml.nvmlDeviceGetUUID(handle)).startswith(prefix):
            matches.append(handle)
    return matches[0] if len(matches) == 1 else None


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
