"""Check: does a step take the memory that it is planned to take?"""

from __future__ import annotations

import gc
import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

import tensorflow as tf

from keras_mgpu.blueprint.partition import readable_bytes
from keras_mgpu.diagnosis.report import OK, UNKNOWN, WARNING, Finding
from keras_mgpu.diagnosis.workload import Workload
from keras_mgpu.placements.layer_facts import bytes_by_device
from keras_mgpu.system.devices import kind_of, short

# Not planned are the loss, the scratch memory of kernels, and what they return before their inputs
# are gone.
MUCH, SLACK_BYTES = 1.5, 64 << 20


@dataclass(frozen=True)
class DeviceMemory:
    """What a device holds, in bytes.

    Args:
        device: Its name.
        weights: Weights of its stages.
        slots: Optimizer slots of these.
        gradients: Sums of gradients.
        activations: What micro-batches keep, where that is the most.
        before: What TensorFlow had allocated before the steps; `None` if it does not count.
        peak: The most that it had allocated during steps.
    """

    device: str
    weights: int
    slots: int
    gradients: int
    activations: int
    before: int | None = None
    peak: int | None = None

    @property
    def planned(self) -> int:
        return self.weights + self.slots + self.gradients + self.activations

    @property
    def is_far_above(self) -> bool:
        return self.peak is not None and self.peak > MUCH * self.planned + SLACK_BYTES

    def __str__(self) -> str:
        peak = "not known" if self.peak is None else readable_bytes(self.peak)
        ratio = "" if self.peak is None else f" ({self.peak / max(1, self.planned):.2f}x)"
        return (
            f"{self.device}: peak {peak}{ratio}, planned {readable_bytes(self.planned)} "
            f"(weights {readable_bytes(self.weights)}, slots {readable_bytes(self.slots)}, "
            f"gradients {readable_bytes(self.gradients)}, activations "
            f"{readable_bytes(self.activations)})"
        )


def check_memory(workload: Workload) -> Finding:
    """Holds the peak of each device against what its stage was planned to hold."""
    allocated = _allocated(workload)
    devices = [
        DeviceMemory(short(device), **planned, **allocated.get(device, {}))
        for device, planned in _planned(workload).items()
    ]
    data = {"devices": [{**asdict(each), "planned": each.planned} for each in devices]}
    lines = [str(each) for each in devices]
    if not allocated:
        return Finding(UNKNOWN, (*lines, "TensorFlow counts the memory of GPUs only."), data)
    above = [each.device for each in devices if each.is_far_above]
    if above:
        lines.append(f"Far more than was planned: {', '.join(above)}.")
    return Finding(WARNING if above else OK, tuple(lines), data)


def _planned(workload: Workload) -> dict[str, dict[str, int]]:
    split = workload.split
    _, sizes = workload.measured
    slots = bytes_by_device(split.optimizer.variables)
    found: dict[str, dict[str, int]] = {}
    for lane, peak in zip(split.schedule.lanes, workload.predicted.peak_memory(sizes)):
        device = split.stages[lane[0].stage].device
        stages = [stage for stage in split.stages if stage.device == device]
        weights = [weight for stage in stages for weight in stage.variables]
        used = [weight for stage in stages for weight in (*stage.variables, *stage.borrowed)]
        found[device] = {
            "weights": _num_bytes(weights),
            "slots": slots.get(short(device), 0),
            "gradients": _num_bytes(weight for weight in used if weight.trainable),
            "activations": int(peak),
        }
    return found


def _allocated(workload: Workload) -> dict[str, dict[str, int]]:
    """Bytes before two steps and at their peak, for devices that count them."""
    devices = [device for device in workload.machine.devices if kind_of(device) == "GPU"]
    info, before = tf.config.experimental.get_memory_info, {}
    workload.train()
    gc.collect()  # Models of other checks.
    for device in devices:
        before[device] = int(info(short(device))["current"])
        tf.config.experimental.reset_memory_stats(short(device))
    for _ in range(2):
        workload.train()
    return {
        device: {"before": before[device], "peak": int(info(short(device))["peak"])}
        for device in devices
    }


def _num_bytes(variables: Iterable[Any]) -> int:
    return sum(math.prod(v.shape) * int(tf.as_dtype(v.dtype).size) for v in variables)
