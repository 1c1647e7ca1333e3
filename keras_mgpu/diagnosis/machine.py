"""The devices to check: those that were asked for, or all GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import tensorflow as tf

from keras_mgpu.internals.tf_devices import has_started
from keras_mgpu.system.devices import gpus, kind_of, logical_devices, normalize, resolve
from keras_mgpu.system.gpu_setup import prepare_gpus

MAX_CPUS = 64


class NoGPUsError(RuntimeError):
    """No device was asked for, and there is no GPU."""


@dataclass(frozen=True)
class Machine:
    """The devices that are checked.

    Args:
        devices: Their names, each once.
    """

    devices: tuple[str, ...]

    @property
    def stage_devices(self) -> tuple[str, ...]:
        """One device per stage, at least two stages: a single device gets both."""
        return self.devices if len(self.devices) > 1 else self.devices * 2

    @property
    def has_gpus_only(self) -> bool:
        return all(kind_of(device) == "GPU" for device in self.devices)

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """Every pair of different devices, in both directions."""
        return [(one, other) for one in self.devices for other in self.devices if one != other]


def find_machine(names: Sequence[str] | None = None) -> Machine:
    """Finds the devices to check, and prepares them if TensorFlow has not started yet.

    Args:
        names: Names of devices. CPUs with an index are created as logical devices. Defaults to all
            GPUs.

    Raises:
        NoGPUsError: If there are no names and no GPUs.
        ValueError: If a device does not exist.
    """
    if not has_started():
        prepare_gpus()
    if names is None:
        found = gpus()
        if not found:
            raise NoGPUsError(
                "TensorFlow sees no GPU on this machine. To try the checks on logical CPU devices, "
                "run `keras-mgpu check --devices CPU:0,CPU:1`."
            )
        return Machine(tuple(found))
    wanted = tuple(dict.fromkeys(normalize(name) for name in names))
    _create_cpus(wanted)
    return Machine(resolve(wanted))


def _create_cpus(names: Sequence[str]) -> None:
    specs = [tf.DeviceSpec.from_string(name) for name in names]
    num_cpus = max(
        [spec.device_index + 1 for spec in specs if spec.device_type == "CPU"], default=0
    )
    if num_cpus > MAX_CPUS:
        raise ValueError(f"There can be at most {MAX_CPUS} CPU devices. Received: {list(names)}")
    if num_cpus > 1:
        logical_devices(num_cpus)
