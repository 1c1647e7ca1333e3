"""`keras-mgpu checkpoints`: what is in a directory of checkpoints, and whether it is intact."""

from __future__ import annotations

import argparse
import contextlib
import datetime
from typing import TYPE_CHECKING, Any

from keras_mgpu.blueprint.partition import readable_bytes
from keras_mgpu.system.terminal import ExitWith, add_json, render, to_json

if TYPE_CHECKING:
    from keras_mgpu.checkpoints.manifest import Manifest
    from keras_mgpu.checkpoints.store import Entry

ACTIONS = ("list", "verify", "show", "export")


def add_checkpoints(commands: Any) -> None:
    about = "list, verify, show or export checkpoints"
    command = commands.add_parser(
        "checkpoints",
        help=about,
        description=about,
        allow_abbrev=False,
        usage="keras-mgpu checkpoints [-h] [--quick] [--json] DIR "
        "[verify | show STEP | export STEP FILE]",
    )
    command.add_argument("directory", metavar="DIR", help="where the checkpoints are")
    command.add_argument(
        "action",
        nargs="?",
        default="list",
        choices=ACTIONS,
        metavar="ACTION",
        help="verify: check every byte; show STEP: its variables; "
        "export STEP FILE: a plain .keras file (default: a table of all)",
    )
    command.add_argument("step", nargs="?", type=int, metavar="STEP", help=argparse.SUPPRESS)
    command.add_argument("file", nargs="?", metavar="FILE", help=argparse.SUPPRESS)
    command.add_argument(
        "--quick", action="store_true", help="look at sizes instead of reading every byte"
    )
    add_json(command)
    command.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> str:
    from keras_mgpu.system import files

    if not files.gfile.isdir(args.directory):
        raise ValueError(f"No such directory. Received: {args.directory!r}")
    wants_step = args.action in ("show", "export")
    if wants_step and args.step is None:
        raise ValueError(f"`{args.action}` needs the step of a checkpoint, such as 100.")
    if (args.action == "export") != (args.file is not None):
        raise ValueError("`export`, and it alone, needs a file to write, such as model.keras.")
    if not wants_step and args.step is not None:
        raise ValueError(f"`{args.action}` takes no step. Received: {args.step}")
    actions = {"list": _list, "verify": _verify, "show": _show, "export": _export}
    return actions[args.action](args)


def _list(args: argparse.Namespace) -> str:
    rows = [_row(entry, not args.quick) for entry in _entries(args.directory)]
    if args.json:
        return to_json(rows)
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column("step", justify="right", style="bold")
    table.add_column("epoch", justify="right")
    table.add_column("values")
    table.add_column("size", justify="right")
    table.add_column("age", justify="right")
    table.add_column("intact")
    table.add_column("name")
    for row in rows:
        table.add_row(
            str(row["step"]),
            _epoch(row),
            ", ".join(f"{name} {value:.4g}" for name, value in row["values"].items()) or "-",
            "-" if row["num_bytes"] is None else readable_bytes(row["num_bytes"]),
            _age(row["created"]),
            "no: " + "; ".join(row["damages"]) if row["damages"] else "yes",
            row["name"],
        )
    return render(table) if rows else "There are no checkpoints.\n"


def _row(entry: Entry, full: bool) -> dict[str, Any]:
    from keras_mgpu.checkpoints.loading import damages
    from keras_mgpu.checkpoints.progress import progress_of
    from keras_mgpu.checkpoints.store import read_manifest

    row: dict[str, Any] = {"name": entry.name, "path": entry.path, "step": entry.step}
    manifest: Manifest | None = None
    with contextlib.suppress(ValueError):  # What is wrong with it stands among the damages.
        manifest = read_manifest(entry.path)
    row["epoch"] = None if manifest is None else manifest.epoch
    row["batch"] = None if manifest is None else manifest.batch
    row["values"] = {} if manifest is None else dict(manifest.values)
    row["num_bytes"] = None if manifest is None else manifest.num_bytes
    row["created"] = None if manifest is None else manifest.created
    with progress_of(f"Checking {entry.name}", row["num_bytes"] or 0) as progress:
        row["damages"] = damages(entry, progress, full)
    return row


def _verify(args: argparse.Namespace) -> str:
    rows = [_row(entry, not args.quick) for entry in _entries(args.directory)]
    if args.json:
        text = to_json([{"name": row["name"], "damages": row["damages"]} for row in rows])
    else:
        lines = [
            f"{row['name']}: {damage}" for row in rows for damage in row["damages"] or ["intact"]
        ]
        text = "\n".join(lines or ["There are no checkpoints."]) + "\n"
    if any(row["damages"] for row in rows):
        raise ExitWith(1, text)
    return text


def _show(args: argparse.Namespace) -> str:
    from keras_mgpu.checkpoints.store import Store, read_manifest

    manifest = read_manifest(Store(args.directory).find(args.step).path)
    if args.json:
        return to_json([vars(tensor) for tensor in manifest.tensors])
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column("variable", style="bold")
    table.add_column("shape")
    table.add_column("type")
    for tensor in sorted(manifest.tensors, key=lambda tensor: tensor.key):
        table.add_row(tensor.key, "x".join(map(str, tensor.shape)) or "-", tensor.dtype)
    topology = manifest.topology
    facts = (
        f"step {manifest.step}, epoch {manifest.epoch}, batch {manifest.batch}, "
        f"{readable_bytes(manifest.num_bytes)}, saved {manifest.created} by "
        f"{len(topology['workers'])} worker(s), {topology['strategy']}, "
        f"on {', '.join(topology['devices'])}"
    )
    return render(facts, "", table)


def _export(args: argparse.Namespace) -> str:
    from keras_mgpu.checkpoints.export import export
    from keras_mgpu.checkpoints.store import Store

    entry = Store(args.directory).find(args.step)
    export(entry, args.file)
    return f"{entry.name} is now {args.file}\n"


def _entries(directory: str) -> list[Entry]:
    from keras_mgpu.checkpoints.store import Store

    return Store(directory).entries()


def _epoch(row: dict[str, Any]) -> str:
    if row["epoch"] is None:
        return "-"
    return f"{row['epoch']}" + (f" + {row['batch']} batches" if row["batch"] else "")


def _age(created: str | None) -> str:
    """How long ago that was. A clock that was set back makes it the future: no age then."""
    if created is None:
        return "-"
    now = datetime.datetime.now(datetime.timezone.utc)
    seconds = (now - datetime.datetime.fromisoformat(created)).total_seconds()
    if seconds < 0:
        return "-"
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds // size:.0f} {unit}"
    return f"{seconds:.0f} s"
