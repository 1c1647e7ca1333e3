"""What lies between two GPUs, as the driver tells it.

Needs the package `nvidia-ml-py` (the extra `nvidia`). Without it, or without a driver, nothing is
said. GPUs are known by their bus: the driver numbers them in another order than CUDA may.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

from keras_mgpu.system.devices import buses_of_gpus


def link_between(source: str, target: str) -> str:
    """The link between two devices by TensorFlow's names; `""` if it is not known."""
    buses = [buses_of_gpus().get(device) for device in (source, target)]
    if None in buses:
        return ""
    return link_between_buses(str(buses[0]), str(buses[1]))


@functools.cache
def link_between_buses(one: str, other: str) -> str:
    """The link between the GPUs at two places of the PCI bus."""
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
    """The driver's library, or `None` if there is none or it does not answer."""
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
