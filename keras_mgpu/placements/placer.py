"""Where TensorFlow's placer puts an op, for graphs that it does not hand over."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from keras_mgpu.system.devices import kind_of, satisfies
from keras_mgpu.system.kernel_support import can_run


class Placer:
    """The rule of TensorFlow's placer: the device asked for if possible, otherwise another one."""

    def __init__(self) -> None:
        self._names = [str(each.name) for each in tf.config.list_logical_devices()]
        self._cpus = [name for name in self._names if kind_of(name) == "CPU"]

    def place(self, node: Any, wanted: str, default: str) -> str:
        """The device of an op.

        Args:
            node: The op.
            wanted: The device that it asks for.
            default: The device of the function that it is in.
        """
        exact = [name for name in self._names if satisfies(name, wanted)]
        for device in [*exact, default, *self._cpus]:
            if can_run(node, kind_of(device)):
                return device
        return default
