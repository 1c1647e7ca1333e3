"""`keras-mgpu placement`: where a model's layers ran, or what changed between two runs."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import Any

from keras_mgpu.placements.differences import differences
from keras_mgpu.placements.report import FILE_NAME, PlacementReport
from keras_mgpu.placements.table import renderables
from keras_mgpu.system.terminal import add_json, render, to_json


def add_placement(commands: Any) -> None:
    about = "show where layers ran, or what changed between two runs"
    command = commands.add_parser("placement", help=about, description=about, allow_abbrev=False)
    command.add_argument("report", metavar="A.json", help=f"a {FILE_NAME}, or its folder")
    command.add_argument(
        "other", nargs="?", metavar="B.json", help="another report to compare it with"
    )
    add_json(command)
    command.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> str:
    report = _read(args.report)
    if args.other is None:
        return report.to_json() if args.json else render(*renderables(report))
    changes = differences(report, _read(args.other))
    if args.json:
        return to_json([asdict(change) for change in changes])
    if not changes:
        return "No differences.\n"
    from rich import box
    from rich.table import Table

    table = Table("where", "what", "before", "after", box=box.SIMPLE_HEAD, show_edge=False)
    for change in changes:
        table.add_row(change.where, change.what, change.before, change.after)
    return render(table)


def _read(name: str) -> PlacementReport:
    path = Path(name) / FILE_NAME if Path(name).is_dir() else Path(name)
    try:
        return PlacementReport.from_json(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"Cannot read the report: {error}. Received: {name!r}") from error
    except ValueError as error:
        raise ValueError(f"{error} Received: {name!r}") from error
