"""What connects two GPUs, according to the driver.

Needs the package `nvidia-ml-py` (the extra `nvidia`). Without it, or without a driver, links are
not known. GPUs are identified by their bus, because CUDA may number them in another order.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

from keras_mgpu.system.devices import buses_of_gpus, short


def link_between(source: str, target: str) -> str:
    """The link between two devices, given by their short names; `""` if it is not known."""
    known = {short(device): bus for device, bus in buses_of_gpus().items()}
    buses = [known.get(device) for device in (source, target)]
    if None in buses:
        return ""
    return link_between_buses(str(buses[0]), str(buses[1]))


@functools.cache
def link_between_buses(one: str, other: str) -> str:
    """The link between the GPUs at two PCI addresses."""
    if one == other:
        return "same GPU"
    with _driver() as nvml:
        if nvml is None:
            return ""
        handles = [nvml.nvmlDeviceGetHandleByPciBusId(bus.encode()) for bus in (one, other)]
        if _has_nvlink(nvml, *handles):
            return "NVLink"
        common = nvml.nvmlDeviceGetTopologyCommonAncestor(*handles)
        return "PCIe" if common <= nvml.NVML_TOPOLOGY_HOSTBRIDGE else "through the host"
    return ""


def _has_nvlink(nvml: Any, one: Any, other: Any) -> bool:
    try:
        status = nvml.nvmlDeviceGetP2PStatus(one, other, nvml.NVML_P2P_CAPS_INDEX_NVLINK)
    except nvml.NVMLError:
        return False
    return bool(status == nvml.NVML_P2P_STATUS_OK)


@contextlib.contextmanager
def _driver() -> Iterator[Any]:
    """Yields the driver's library, or `None` if it is missing or does not answer."""
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
