"""What lies between two GPUs, as the driver tells it.

Needs the package `nvidia-ml-py` (the extra `nvidia`). Without it, or without a driver, nothing is
said. GPUs are known by their bus: the driver numbers them in another order than CUDA may.
"""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Iterator
from typing import Any

_BUS = re.compile(r"pci bus id: ([0-9A-Fa-f:.]+)")


def between(source: str, target: str) -> str:
    """The link between two devices by TensorFlow's names; `""` if it is not known."""
    buses = [_buses().get(device) for device in (source, target)]
    if None in buses:
        return ""
    return between_buses(str(buses[0]), str(buses[1]))


@functools.cache
def between_buses(one: str, other: str) -> str:
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


@functools.cache
def _buses() -> dict[str, str]:
    """The place on the bus of each GPU of this process, by TensorFlow's name."""
    import tensorflow as tf

    if not tf.config.list_logical_devices("GPU"):
        return {}
    from tensorflow.python.client import device_lib

    found = {}
    whole = {tf.DeviceSpec.from_string(each.name): each.name for each in _logical_gpus()}
    for device in device_lib.list_local_devices():
        match = _BUS.search(device.physical_device_desc)
        if match:
            index = tf.DeviceSpec.from_string(device.name).device_index
            for spec, name in whole.items():
                if spec.device_index == index:
                    found[name] = match[1]
    return found


def _logical_gpus() -> list[Any]:
    import tensorflow as tf

    return list(tf.config.list_logical_devices("GPU"))


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
