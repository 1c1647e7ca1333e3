"""`keras-mgpu schedule`: draws a schedule, with its bubble and its memory."""

from __future__ import annotations

import argparse
import json
from typing import Any

from keras_mgpu.blueprint.named_schedules import SCHEDULES, make, recomputing
from keras_mgpu.blueprint.schedule import Schedule
from keras_mgpu.blueprint.timeline import Timeline, replay
from keras_mgpu.system.terminal import add_json, render, to_json

COLORS = {"F": "cyan", "R": "blue", "B": "green", "W": "magenta"}


def add_schedule(commands: Any) -> None:
    about = "draw a schedule, with its bubble and the micro-batches it keeps in memory"
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
        help="number of micro-batches per batch (default: 8)",
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
    command.set_defaults(run=_run)


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a positive integer. Received: {text!r}")
    return int(text)


def _run(args: argparse.Namespace) -> str:
    num_devices = args.devices or max(1, args.stages // 2)
    schedule = make(args.name, args.stages, args.micro_batches, num_devices)
    if args.recompute:
        schedule = recomputing(schedule, range(args.stages))
    timeline = replay(schedule)
    return _as_json(schedule, timeline) if args.json else _page(schedule, timeline)


def _as_json(schedule: Schedule, timeline: Timeline) -> str:
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


def _page(schedule: Schedule, timeline: Timeline) -> str:
    from rich.table import Table
    from rich.text import Text

    drawing = Text(timeline.draw())
    for kind, style in COLORS.items():
        drawing.highlight_regex(rf"\d*{kind}\d+-*", style)
    drawing.highlight_regex(r"lane \d+|\.", "dim")
    lanes, micro_batches = len(schedule.lanes), schedule.num_micro_batches
    facts = Table(box=None, pad_edge=False, show_header=False)
    facts.add_row("bubble", f"{timeline.bubble:.1%}")
    facts.add_row(
        "ideal",
        f"{_ideal_bubble(schedule):.1%} = (devices - 1) / (micro-batches + devices - 1)"
        f" = {lanes - 1}/{micro_batches + lanes - 1}, for gpipe and 1f1b",
    )
    facts.add_row("peak live", f"{', '.join(map(str, timeline.peak_live))} micro-batches per stage")
    title = f"{schedule.name} (stages: {schedule.num_stages}, micro-batches: {micro_batches})"
    return render(Text(title, style="bold"), "", drawing, "", facts)


def _ideal_bubble(schedule: Schedule) -> float:
    """Idle share of gpipe and 1f1b: a pipeline that fills once and drains once."""
    waits = len(schedule.lanes) - 1
    return waits / (schedule.num_micro_batches + waits)
