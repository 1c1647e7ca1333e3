"""What a placement report consists of: one record per op, layer, device and transfer."""

from __future__ import annotations

from dataclasses import dataclass

MODEL, LOSS, OPTIMIZER, REST = "(model)", "(loss)", "(optimizer)", "(rest)"


@dataclass(frozen=True)
class OpPlacement:
    """One op of the graph that was run.

    Args:
        name: Its name in that graph.
        op: What it does, such as `"MatMul"`; several ops that TensorFlow fused are joined, as in
            `"MatMul+BiasAdd"`.
        layer: Path of the layer it belongs to.
        replica: The replica it was run for.
        asked: The device it asked for, or `""`.
        got: The device it ran on.
        reason: Why it did not get the device it asked for, or `""`.
    """

    name: str
    op: str
    layer: str
    replica: int
    asked: str
    got: str
    reason: str = ""


@dataclass(frozen=True)
class LayerPlacement:
    """One layer.

    Args:
        path: Names of the models it is nested in, and its own name.
        kind: Name of its class.
        stages: Stages of a pipeline that run it.
        asked: For each replica, the devices its ops asked for.
        got: For each replica, the devices its ops ran on.
        weights_on: Devices that hold its weights.
        slots_on: Devices that hold its optimizer slots.
        num_ops: Ops that were run for it, including backward passes.
        num_parameters: Number of values in its weights.
        weight_bytes: Bytes of its weights, with every copy counted.
        slot_bytes: Bytes of its optimizer slots, with every copy counted.
        activation_bytes: Bytes its calls return for one micro-batch; `None` if not known.
        inputs: Paths of the layers whose outputs it takes, if the model's graph is known.
    """

    path: str
    kind: str
    stages: tuple[int, ...] = ()
    asked: tuple[tuple[str, ...], ...] = ()
    got: tuple[tuple[str, ...], ...] = ()
    weights_on: tuple[str, ...] = ()
    slots_on: tuple[str, ...] = ()
    num_ops: int = 0
    num_parameters: int = 0
    weight_bytes: int = 0
    slot_bytes: int = 0
    activation_bytes: int | None = None
    inputs: tuple[str, ...] = ()

    @property
    def has_far_slots(self) -> bool:
        """Whether optimizer slots are on a device that holds none of the weights."""
        return bool(self.slots_on) and not set(self.slots_on) <= set(self.weights_on)


@dataclass(frozen=True)
class DeviceTotal:
    """What a device holds and runs.

    Args:
        device: Its name.
        num_layers: Layers with ops on it.
        num_ops: Ops that ran on it.
        weight_bytes: Bytes of weights.
        slot_bytes: Bytes of optimizer slots.
        activation_bytes: Bytes of one micro-batch's activations.
    """

    device: str
    num_layers: int = 0
    num_ops: int = 0
    weight_bytes: int = 0
    slot_bytes: int = 0
    activation_bytes: int = 0

    @property
    def num_bytes(self) -> int:
        return self.weight_bytes + self.slot_bytes + self.activation_bytes


@dataclass(frozen=True)
class MovedOps:
    """Ops of one type in one layer that did not run on the device they asked for.

    Args:
        layer: Path of the layer.
        op: What they do.
        asked: The device they asked for.
        got: The device they ran on.
        count: How many there are.
        reason: Why they were moved.
    """

    layer: str
    op: str
    asked: str
    got: str
    count: int
    reason: str


@dataclass(frozen=True)
class Edge:
    """What is copied from the memory of one device to that of another in a step.

    Args:
        source: The device that sends. The host's memory is that of `CPU:0`.
        target: The device that receives.
        num_tensors: Tensors that are copied, including those inside of stages.
        num_bytes: Bytes of the tensors whose size is known.
        num_unknown: How many tensors are of unknown size.
        link: What connects two GPUs, or `""` if that is not known.
    """

    source: str
    target: str
    num_tensors: int
    num_bytes: int
    num_unknown: int = 0
    link: str = ""


@dataclass(frozen=True)
class Collective:
    """Collective operations, such as all-reduce, that a device takes part in during a step.

    Args:
        device: The device.
        op: What it does, such as `"CollectiveReduceV2"`.
        count: How often it runs.
        num_bytes: Bytes of all tensors whose size is known.
    """

    device: str
    op: str
    count: int
    num_bytes: int
