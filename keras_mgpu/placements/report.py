"""The placement of a model as plain data that is written to JSON and read back.

Everything that shows a placement reads this: the table, TensorBoard, the command line, and the
comparison of two runs.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Any

from keras_mgpu.placements.report_parts import (
    Collective,
    DeviceTotal,
    Edge,
    LayerPlacement,
    MovedOps,
    OpPlacement,
)
from keras_mgpu.placements.report_warnings import far_slots, moved_ops, uneven_memory

FILE_NAME = "placement.json"
VERSION = 1
EXECUTED, TRACED, VARIABLES = "executed graph", "traced graph", "variables"
_PARTS = {
    "layers": LayerPlacement,
    "devices": DeviceTotal,
    "moved": MovedOps,
    "edges": Edge,
    "collectives": Collective,
}


@dataclass(frozen=True)
class PlacementReport:
    """Where a model's layers ran.

    Args:
        model: Name of the model.
        strategy: Name of the strategy's class, or `""` without one.
        num_samples: Samples in the micro-batch that activations are computed for.
        source: How the devices of ops are known. `"executed graph"`: read from the graph that
            ran. `"traced graph"`: other processes ran it, and TensorFlow's placement rules were
            applied to the traced graph. `"variables"`: no graph was run, as with
            `run_eagerly=True`, and only the devices of variables are known.
        layers: Every layer in the order of the model, followed by ops that belong to no layer.
        devices: What each device holds.
        moved: Ops that did not run on the device they asked for.
        edges: What devices send to one another.
        collectives: Collective operations.
        ops: Every op. Not part of the JSON.
    """

    model: str
    strategy: str = ""
    num_samples: int = 1
    source: str = EXECUTED
    layers: tuple[LayerPlacement, ...] = ()
    devices: tuple[DeviceTotal, ...] = ()
    moved: tuple[MovedOps, ...] = ()
    edges: tuple[Edge, ...] = ()
    collectives: tuple[Collective, ...] = ()
    ops: tuple[OpPlacement, ...] = dataclasses.field(default=(), repr=False, compare=False)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What is worth a second look, one sentence each."""
        return (*uneven_memory(self.devices), *far_slots(self.layers), *moved_ops(self.moved))

    def to_json(self) -> str:
        """Returns JSON. The same placement always gives the same text."""
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
            ValueError: If the text is not a placement report, or one of a newer version.
        """
        try:
            fields = json.loads(text)
            version = fields.pop("version")
        except (ValueError, TypeError, AttributeError, KeyError) as error:
            raise ValueError(f"Not a placement report: {error!r}.") from error
        if version != VERSION:
            raise ValueError(
                f"The placement report has version {version}, and this package reads version "
                f"{VERSION}."
            )
        try:
            fields.pop("warnings")
            parts: dict[str, Any] = {
                name: tuple(_checked(kind(**_frozen(each))) for each in fields.pop(name))
                for name, kind in _PARTS.items()
            }
            return cls(**fields, **parts)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"Not a placement report: {error}.") from error


def _checked(part: Any) -> Any:
    """Raises unless every integer is one. Other types do no harm."""
    for each in dataclasses.fields(part):
        value = getattr(part, each.name)
        if each.type == "int" and type(value) is not int:
            raise TypeError(f"{each.name} is {value!r}")
    return part


def _frozen(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: _as_tuple(value) for name, value in fields.items()}


def _as_tuple(value: Any) -> Any:
    return tuple(map(_as_tuple, value)) if isinstance(value, list) else value
