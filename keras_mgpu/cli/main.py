"""The command line, `keras-mgpu`: what can be looked at without a line of Python.

Each command imports what it needs when it runs, so that help comes at once and a schedule can be
drawn without waiting for TensorFlow.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

from keras_mgpu.blueprint.named_schedules import SCHEDULES, make, recomputing
from keras_mgpu.blueprint.schedule import Schedule
from keras_mgpu.blueprint.timeline import Timeline, replay
from keras_mgpu.cli.checkpoints import add_checkpoints
from keras_mgpu.cli.placement import add_placement
from keras_mgpu.system.terminal import ExitWith, add_json, render, to_json

COLOURS = {"F": "cyan", "R": "blue", "B": "green", "W": "magenta"}

if TYPE_CHECKING:
    from keras_mgpu.system.devices import DeviceInfo


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code.

    Args:
        argv: The arguments behind the name of the program. Defaults to those of the process.

    Raises:
        SystemExit: With code 2 after bad use, and with code 0 after `--help` or `--version`.
    """
    parser = _parser()
    args = parser.parse_args(argv)
    try:
        text = args.run(args)
    except ValueError as error:
        parser.error(" ".join(str(error).split()))
    except ExitWith as result:
        _write(result.text)
        return result.code
    _write(text)
    return 0


class _Parser(argparse.ArgumentParser):
    """A parser that answers bad use with a single line; the usage is one `--help` away."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message}\n")


def _parser() -> _Parser:
    from keras_mgpu.version import __version__

    parser = _Parser(
        prog="keras-mgpu",
        description="Looks at devices, schedules, placements and checkpoints of Keras models.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"keras-mgpu {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add_devices(commands)
    _add_schedule(commands)
    add_checkpoints(commands)
    add_placement(commands)
    return parser


def _add_devices(commands: argparse._SubParsersAction[_Parser]) -> None:
    about = "list the devices that stages can run on"
    command = commands.add_parser("devices", help=about, description=about, allow_abbrev=False)
    add_json(command)
    command.set_defaults(run=_devices)


def _add_schedule(commands: argparse._SubParsersAction[_Parser]) -> None:
    about = "draw a schedule, with its bubble and the micro-batches it keeps alive"
    command = commands.add_parser("schedule", help=about, description=about, allow_abbrev=False)
    command.add_argument("name", metavar="NAME", choices=SCHEDULES, help=", ".join(SCHEDULES))
    command.add_argument(
        "--stages", type=_count, default=4, metavar="N", help="number of stages (default: 4)"
    )
    command.add_argument(
        "--micro-batches",
        type=_count,
        default=8,
        metavar="N",
        help="number of micro-batches that a batch is cut into (default: 8)",
    )
    command.add_argument(
        "--devices",
        type=_count,
        metavar="N",
        help="number of devices that interleaved stages share (default: half the stages)",
    )
    command.add_argument(
        "--recompute", action="store_true", help="run each forward again before its backward"
    )
    add_json(command)
    command.set_defaults(run=_schedule)


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number from 1 on. Received: {text!r}")
    return int(text)


def _devices(args: argparse.Namespace) -> str:
    from keras_mgpu.system.devices import describe

    devices = describe()
    return _devices_json(devices) if args.json else _devices_table(devices)


def _devices_json(devices: Sequence[DeviceInfo]) -> str:
    fields = ("name", "kind", "description", "memory_bytes")
    return to_json([{field: getattr(device, field) for field in fields} for device in devices])


def _devices_table(devices: Sequence[DeviceInfo]) -> str:
    from rich.table import Table

    from keras_mgpu.blueprint.partition import readable_bytes

    table = Table(box=None, pad_edge=False)
    table.add_column("name", style="bold")
    table.add_column("kind")
    table.add_column("memory", justify="right")
    table.add_column("description")
    for device in devices:
        memory = "-" if device.memory_bytes is None else readable_bytes(device.memory_bytes)
        table.add_row(device.name, device.kind, memory, device.description)
    return render(table)


def _schedule(args: argparse.Namespace) -> str:
    num_devices = args.devices or max(1, args.stages // 2)
    schedule = make(args.name, args.stages, args.micro_batches, num_devices)
    if args.recompute:
        schedule = recomputing(schedule, range(args.stages))
    timeline = replay(schedule)
    if args.json:
        return _schedule_json(schedule, timeline)
    return _schedule_page(schedule, timeline)


def _schedule_json(schedule: Schedule, timeline: Timeline) -> str:
    return to_json(
        {
            "schedule": json.loads(schedule.to_json()),
            "timeline": json.loads(timeline.to_json()),
            "makespan": timeline.makespan,
            "bubble": timeline.bubble,
            "ideal_bubble": _ideal_bubble(schedule),
            "peak_live": timeline.peak_live,
        }
    )


def _schedule_page(schedule: Schedule, timeline: Timeline) -> str:
    from rich.table import Table
    from rich.text import Text

    stages, micro_batches = schedule.num_stages, schedule.num_micro_batches
    drawing = Text(timeline.draw())
    for kind, style in COLOURS.items():
        drawing.highlight_regex(rf"\d*{kind}\d+-*", style)
    drawing.highlight_regex(r"lane \d+|\.", "dim")
    facts = Table(box=None, pad_edge=False, show_header=False)
    facts.add_row("bubble", f"{timeline.bubble:.1%}")
    lanes = len(schedule.lanes)
    facts.add_row(
        "ideal",
        f"{_ideal_bubble(schedule):.1%} = (devices - 1) / (micro-batches + devices - 1)"
        f" = {lanes - 1}/{micro_batches + lanes - 1}, of gpipe and 1f1b",
    )
    facts.add_row("peak live", f"{', '.join(map(str, timeline.peak_live))} micro-batches a stage")
    title = f"{schedule.name} (stages: {stages}, micro-batches: {micro_batches})"
    return render(Text(title, style="bold"), "", drawing, "", facts)


def _ideal_bubble(schedule: Schedule) -> float:
    """Idle share of gpipe and 1f1b: a pipeline that fills once and drains once."""
    waits = len(schedule.lanes) - 1
    return waits / (schedule.num_micro_batches + waits)


def _write(text: str) -> None:
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader, such as `head`, has seen enough. Python flushes once more when it ends, and
        # would complain then.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
