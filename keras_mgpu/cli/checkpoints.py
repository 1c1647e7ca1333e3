"""`keras-mgpu checkpoints`: what is in a directory of checkpoints, and whether it is intact."""

from __future__ import annotations

import argparse
import contextlib
import datetime
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from keras_mgpu.blueprint.partition import readable_bytes
from keras_mgpu.system.terminal import ExitWith, add_json, render, to_json

if TYPE_CHECKING:
    from keras_mgpu.checkpoints.manifest import Manifest
    from keras_mgpu.checkpoints.store import Entry

ACTIONS = ("list", "verify", "show", "export")
NONE = "There are no checkpoints.\n"


@dataclass
class CheckpointRow:
    """A checkpoint in the table. Without a readable manifest, most of it is not known."""

    name: str
    path: str
    step: int
    epoch: int | None = None
    batch: int | None = None
    values: Mapping[str, float] = field(default_factory=dict)
    num_bytes: int | None = None
    created: str | None = None
    damages: Sequence[str] = ()


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
    command.add_argument("directory", metavar="DIR", help="directory of the checkpoints")
    command.add_argument(
        "action",
        nargs="?",
        default="list",
        choices=ACTIONS,
        metavar="ACTION",
        help="verify: check every byte; show STEP: list its variables; "
        "export STEP FILE: write a plain .keras file (default: list all checkpoints)",
    )
    command.add_argument("step", nargs="?", type=int, metavar="STEP", help=argparse.SUPPRESS)
    command.add_argument("file", nargs="?", metavar="FILE", help=argparse.SUPPRESS)
    command.add_argument(
        "--quick", action="store_true", help="check the sizes of files instead of every byte"
    )
    add_json(command)
    command.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> str:
    from keras_mgpu.system import files

    if not files.gfile.isdir(args.directory):
        raise ValueError(f"The directory does not exist. Received: {args.directory!r}")
    wants_step = args.action in ("show", "export")
    if wants_step and args.step is None:
        raise ValueError(f"`{args.action}` needs the step of a checkpoint, such as 100.")
    if args.action == "export" and args.file is None:
        raise ValueError("`export` needs a file to write, such as model.keras.")
    if args.action != "export" and args.file is not None:
        raise ValueError(f"`{args.action}` takes no file. Received: {args.file!r}")
    if not wants_step and args.step is not None:
        raise ValueError(f"`{args.action}` takes no step. Received: {args.step}")
    actions = {"list": _list, "verify": _verify, "show": _show, "export": _export}
    return actions[args.action](args)


def _list(args: argparse.Namespace) -> str:
    rows = _rows(args)
    if args.json:
        return to_json([asdict(row) for row in rows])
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column("step", justify="right", style="bold")
    table.add_column("epoch", justify="right")
    table.add_column("values")
    table.add_column("size", justify="right")
    table.add_column("age", justify="right")
    table.add_column("intact")
    table.add_column("name")
    now = datetime.datetime.now(datetime.timezone.utc)
    for row in rows:
        table.add_row(
            str(row.step),
            _epoch(row),
            ", ".join(f"{name} {value:.4g}" for name, value in row.values.items()) or "-",
            "-" if row.num_bytes is None else readable_bytes(row.num_bytes),
            _age(row.created, now),
            "no: " + "; ".join(row.damages) if row.damages else "yes",
            row.name,
        )
    return render(table) if rows else NONE


def _rows(args: argparse.Namespace) -> list[CheckpointRow]:
    from keras_mgpu.checkpoints.store import Store

    return [_row(entry, full=not args.quick) for entry in Store(args.directory).entries()]


def _row(entry: Entry, full: bool) -> CheckpointRow:
    from keras_mgpu.checkpoints.damage import damages
    from keras_mgpu.checkpoints.progress import progress_of

    row = CheckpointRow(entry.name, entry.path, entry.step)
    manifest = _manifest(entry)
    if manifest is not None:
        row.epoch, row.batch = manifest.epoch, manifest.batch
        row.values, row.created = dict(manifest.values), manifest.created
        row.num_bytes = manifest.num_bytes
    with progress_of(f"Checking {entry.name}", row.num_bytes or 0) as progress:
        row.damages = damages(entry, progress, full)
    return row


def _manifest(entry: Entry) -> Manifest | None:
    from keras_mgpu.checkpoints.store import read_manifest

    with contextlib.suppress(ValueError):  # `damages` reports what is wrong with it.
        return read_manifest(entry.path)
    return None


def _verify(args: argparse.Namespace) -> str:
    rows = _rows(args)
    if args.json:
        text = to_json([{"name": row.name, "damages": row.damages} for row in rows])
    else:
        lines = [f"{row.name}: {damage}\n" for row in rows for damage in row.damages or ["intact"]]
        text = "".join(lines) or NONE
    if any(row.damages for row in rows):
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
    return render(_summary(manifest), "", table)


def _summary(manifest: Manifest) -> str:
    topology = manifest.topology
    num_workers = len(topology["workers"])
    return (
        f"step {manifest.step}, epoch {manifest.epoch}, batch {manifest.batch}, "
        f"{readable_bytes(manifest.num_bytes)}, saved {manifest.created} by "
        f"{num_workers} {'worker' if num_workers == 1 else 'workers'}, {topology['strategy']}, "
        f"on {', '.join(topology['devices'])}"
    )


def _export(args: argparse.Namespace) -> str:
    from keras_mgpu.checkpoints.export import export
    from keras_mgpu.checkpoints.store import Store

    entry = Store(args.directory).find(args.step)
    export(entry, args.file)
    return f"Exported {entry.name} to {args.file}\n"


def _epoch(row: CheckpointRow) -> str:
    if row.epoch is None:
        return "-"
    return f"{row.epoch}" + (f" + {row.batch} batches" if row.batch else "")


def _age(created: str | None, now: datetime.datetime) -> str:
    """The time since then; `"-"` if it is not known, or in the future of a clock set back."""
    if created is None:
        return "-"
    seconds = (now - datetime.datetime.fromisoformat(created)).total_seconds()
    if seconds < 0:
        return "-"
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds // size:.0f} {unit}"
    return f"{seconds:.0f} s"
