"""`keras-mgpu devices`: the devices that stages can run on."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from keras_mgpu.blueprint.partition import readable_bytes
from keras_mgpu.system.terminal import add_json, render, to_json

if TYPE_CHECKING:
    from keras_mgpu.system.devices import DeviceInfo


def add_devices(commands: Any) -> None:
    about = "list the devices that stages can run on"
    command = commands.add_parser("devices", help=about, description=about, allow_abbrev=False)
    add_json(command)
    command.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> str:
    from keras_mgpu.system.devices import describe

    devices = describe()
    return to_json([vars(device) for device in devices]) if args.json else _table(devices)


def _table(devices: Sequence[DeviceInfo]) -> str:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column("name", style="bold")
    table.add_column("kind")
    table.add_column("memory", justify="right")
    table.add_column("description")
    for device in devices:
        memory = "-" if device.memory_bytes is None else readable_bytes(device.memory_bytes)
        table.add_row(device.name, device.kind, memory, device.description)
    return render(table)
