"""What is known about the placement of a model, as plain data that turns into JSON and back.

Everything that shows a placement reads this: the table, TensorBoard, the command line, and the
difference between two runs.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Any

FILE_NAME = "placement.json"
VERSION = 1
LOPSIDED = 1.3  # How many times its even share a device may hold before it is worth a word.
EXECUTED, TRACED, VARIABLES = "executed graph", "traced graph", "variables"
MODEL, LOSS, OPTIMIZER, REST = "(model)", "(loss)", "(optimizer)", "(rest)"


@dataclass(frozen=True)
class OpPlacement:
    """One op of the graph that was run.

    Args:
        name: Its name in that graph.
        op: What it does, such as `"MatMul"`.
        layer: Path of the layer it belongs to.
        replica: The replica it was run for.
        asked: The device it asked for, `""` if for none.
        got: The device it ran on.
        reason: Why it did not get the device it asked for, `""` if it did.
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
        path: Names of the models it is nested in, and its own.
        kind: Name of its class.
        stages: Stages of a pipeline that run it.
        asked: For each replica, the devices its ops asked for.
        got: For each replica, the devices its ops ran on.
        weights_on: Devices its weights lie on.
        slots_on: Devices its optimizer slots lie on.
        num_ops: Ops that were run for it, backward passes too.
        num_parameters: Numbers in its weights.
        weight_bytes: Bytes of its weights, once for each copy.
        slot_bytes: Bytes of its optimizer slots, likewise.
        activation_bytes: Bytes its calls return for one micro-batch; `None` if not known.
        inputs: Paths of the layers whose outputs it takes, where the model's graph tells.
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
class Moved:
    """Ops of one kind in one layer that did not run where they asked to.

    Args:
        layer: Path of the layer.
        op: What they do.
        asked: The device they asked for.
        got: The device they ran on.
        count: How many.
        reason: Why.
    """

    layer: str
    op: str
    asked: str
    got: str
    count: int
    reason: str


@dataclass(frozen=True)
class Edge:
    """What goes from one device to another in a step.

    Args:
        source: The device it comes from.
        target: The device it goes to.
        num_tensors: Tensors that cross.
        num_bytes: Their bytes, of those whose size is known.
        num_unknown: How many are of unknown size.
        link: What lies between two GPUs, `""` if that is not known.
    """

    source: str
    target: str
    num_tensors: int
    num_bytes: int
    num_unknown: int = 0
    link: str = ""


@dataclass(frozen=True)
class Collective:
    """Sums and copies that all devices of a group make together in a step.

    Args:
        device: The device that takes part.
        op: What it does, such as `"CollectiveReduceV2"`.
        count: How often.
        num_bytes: Bytes of all of them, of those whose size is known.
    """

    device: str
    op: str
    count: int
    num_bytes: int


@dataclass(frozen=True)
class PlacementReport:
    """Where a model's layers ran.

    Args:
        model: Name of the model.
        strategy: Name of the strategy's class, `""` without one.
        num_samples: Samples in the micro-batch that activations are reckoned for.
        source: What tells where ops ran: `"executed graph"`; `"traced graph"` where other
            processes ran it, and TensorFlow's rules were applied to what ops ask for; or
            `"variables"` if there was no graph, as with `run_eagerly=True`.
        layers: Every layer, in the order of the model, and what is no layer behind them.
        devices: What each device holds.
        moved: Ops that ran elsewhere than they asked to.
        edges: What goes from device to device.
        collectives: What devices do together.
        ops: Every op. Not in the JSON.
    """

    model: str
    strategy: str = ""
    num_samples: int = 1
    source: str = EXECUTED
    layers: tuple[LayerPlacement, ...] = ()
    devices: tuple[DeviceTotal, ...] = ()
    moved: tuple[Moved, ...] = ()
    edges: tuple[Edge, ...] = ()
    collectives: tuple[Collective, ...] = ()
    ops: tuple[OpPlacement, ...] = dataclasses.field(default=(), repr=False, compare=False)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What is worth a second look, a sentence each."""
        return (*_lopsided(self), *_far_slots(self), *_moved(self))

    def to_json(self) -> str:
        """The same text for the same placement: nothing in it depends on time or order of work."""
        fields = {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)
            if field.name != "ops"
        }
        plain = {
            "version": VERSION,
            **json.loads(json.dumps(fields, default=dataclasses.asdict)),
            "warnings": list(self.warnings),
        }
        return json.dumps(plain, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str) -> PlacementReport:
        """Reads what `to_json` wrote.

        Raises:
            ValueError: If it is something else, or of a newer version.
        """
        try:
            fields = json.loads(text)
            version = fields.pop("version")
        except (ValueError, TypeError, AttributeError, KeyError) as error:
            raise ValueError(f"This is no placement report: {error!r}") from error
        if version != VERSION:
            raise ValueError(
                f"The placement report is of version {version}; this package reads {VERSION}."
            )
        kinds = {
            "layers": LayerPlacement,
            "devices": DeviceTotal,
            "moved": Moved,
            "edges": Edge,
            "collectives": Collective,
        }
        try:
            fields.pop("warnings")
            parts: dict[str, Any] = {
                name: tuple(_checked(kind(**_frozen(each))) for each in fields.pop(name))
                for name, kind in kinds.items()
            }
            return cls(**fields, **parts)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"This is no placement report: {error}") from error


def _checked(part: Any) -> Any:
    """Sees whether numbers are numbers; the rest shows itself."""
    for each in dataclasses.fields(part):
        value = getattr(part, each.name)
        if each.type == "int" and type(value) is not int:
            raise TypeError(f"{each.name} is {value!r}")
    return part


def _frozen(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: _as_tuple(value) for name, value in fields.items()}


def _as_tuple(value: Any) -> Any:
    return tuple(map(_as_tuple, value)) if isinstance(value, list) else value


def percent(part: float, whole: float) -> str:
    return f"{100 * part / whole:.0f} %" if whole else "0 %"


def _lopsided(report: PlacementReport) -> list[str]:
    """Of the devices that do the work: the CPU beside GPUs is not meant to hold its share."""
    workers = [each for each in report.devices if "GPU" in each.device]
    workers = workers or [each for each in report.devices if each.num_bytes]
    total = sum(each.num_bytes for each in workers)
    found = []
    for each in workers:
        if len(workers) > 1 and each.num_bytes * len(workers) > LOPSIDED * total:
            found.append(
                f"{each.device} holds {percent(each.num_bytes, total)} of the memory; an even "
                f"share of {len(workers)} devices would be {percent(1, len(workers))}."
            )
    return found


def _far_slots(report: PlacementReport) -> list[str]:
    far = [
        layer
        for layer in report.layers
        if layer.slots_on and not set(layer.slots_on) <= set(layer.weights_on)
    ]
    if not far:
        return []
    first = far[0]
    more = f" and {len(far) - 1} more" if len(far) > 1 else ""
    return [
        f"Optimizer slots lie far from their weights: {first.path} has its weights on "
        f"{', '.join(first.weights_on)} and its slots on {', '.join(first.slots_on)}{more}."
    ]


def _moved(report: PlacementReport) -> list[str]:
    """One sentence for each reason."""
    by_reason: dict[tuple[str, str, str], list[Moved]] = {}
    for each in report.moved:
        by_reason.setdefault((each.reason, each.asked, each.got), []).append(each)
    found = []
    for (reason, asked, got), moves in by_reason.items():
        layers = list(dict.fromkeys(each.layer for each in moves))
        names = ", ".join(layers[:3]) + (f" and {len(layers) - 3} more" if len(layers) > 3 else "")
        count = sum(each.count for each in moves)
        ops = "op" if count == 1 else "ops"
        found.append(f"{count} {ops} of {names} asked for {asked} and ran on {got}: {reason}.")
    return found
