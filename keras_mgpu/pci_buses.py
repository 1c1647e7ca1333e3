"""Where TensorFlow's GPUs are on the PCI bus: the only name of a GPU that the driver knows too."""

from __future__ import annotations

import functools
import re

_BUS = re.compile(r"pci bus id: ([0-9A-Fa-f:.]+)")


@functools.cache
def buses_of_gpus() -> dict[str, str]:
    """The place on the bus of each GPU of this process, by TensorFlow's whole name, in order."""
    import tensorflow as tf
    from tensorflow.python.client import device_lib

    gpus = tf.config.list_logical_devices("GPU")
    if not gpus:
        return {}
    found = {}
    descriptions = {
        tf.DeviceSpec.from_string(each.name).device_index: each.physical_device_desc
        for each in device_lib.list_local_devices()
        if each.device_type == "GPU"
    }
    for gpu in gpus:
        index = tf.DeviceSpec.from_string(gpu.name).device_index
        match = _BUS.search(descriptions.get(index, ""))
        if match:
            found[gpu.name] = match[1]
    return found
