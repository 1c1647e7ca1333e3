"""What connects two GPUs, according to the driver.

Without the driver's library, links are not known. GPUs are identified by their bus, because CUDA
may number them in another order.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from keras_mgpu.system.devices import buses_of_gpus, short
from keras_mgpu.system.nvidia_driver import nvidia_driver


def link_between(source: str, target: str) -> str:
    """The link between two devices, given by full or short names; `""` if it is not known."""
    buses = _buses(source, target)
    return link_between_buses(*buses) if buses else ""


def has_peer_access(source: str, target: str) -> bool | None:
    """Whether a GPU can write to the memory of another one; `None` if that is not known."""
    buses = _buses(source, target)
    return has_peer_access_between_buses(*buses) if buses else None


@functools.cache
def link_between_buses(one: str, other: str) -> str:
    """The link between the GPUs at two PCI addresses."""
    if one == other:
        return "same GPU"
    with nvidia_driver() as nvml:
        if nvml is None:
            return ""
        handles = [nvml.nvmlDeviceGetHandleByPciBusId(bus.encode()) for bus in (one, other)]
        if _is_possible(nvml, handles, nvml.NVML_P2P_CAPS_INDEX_NVLINK):
            return "NVLink"
        common = nvml.nvmlDeviceGetTopologyCommonAncestor(*handles)
        return "PCIe" if common <= nvml.NVML_TOPOLOGY_HOSTBRIDGE else "through the host"
    return ""


def has_peer_access_between_buses(one: str, other: str) -> bool | None:
    """The same for the GPUs at two PCI addresses."""
    with nvidia_driver() as nvml:
        if nvml is None:
            return None
        handles = [nvml.nvmlDeviceGetHandleByPciBusId(bus.encode()) for bus in (one, other)]
        return _is_possible(nvml, handles, nvml.NVML_P2P_CAPS_INDEX_WRITE)
    return None


def _buses(source: str, target: str) -> tuple[str, str] | None:
    named = buses_of_gpus()
    buses = {**named, **{short(device): bus for device, bus in named.items()}}
    return (buses[source], buses[target]) if {source, target} <= set(buses) else None


def _is_possible(nvml: Any, handles: Sequence[Any], capability: int) -> bool:
    try:
        status = nvml.nvmlDeviceGetP2PStatus(*handles, capability)
    except nvml.NVMLError:
        return False
    return bool(status == nvml.NVML_P2P_STATUS_OK)
