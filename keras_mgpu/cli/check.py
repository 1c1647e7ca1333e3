"""`keras-mgpu check`: tries on this machine's devices whether everything is as it should be."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

from keras_mgpu.diagnosis.page import page
from keras_mgpu.diagnosis.report import FILE_NAME, CheckReport
from keras_mgpu.system.terminal import ExitWith


def add_check(commands: Any) -> None:
    about = "try on this machine's GPUs whether numbers, speed and memory are as they should be"
    command = commands.add_parser(
        "check",
        help=about,
        description=f"{about}; takes up to five minutes. Exits with 1 if something is wrong.",
        allow_abbrev=False,
    )
    command.add_argument(
        "--devices",
        type=_names,
        metavar="NAMES",
        help="devices to check, such as GPU:0,GPU:1 (default: all GPUs)",
    )
    command.add_argument(
        "--json",
        type=Path,
        default=Path(FILE_NAME),
        metavar="FILE",
        help=f"where to write what was measured (default: {FILE_NAME})",
    )
    command.set_defaults(run=_run)


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",")]


def _run(args: argparse.Namespace) -> str:
    _check_writable(args.json)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")  # Leaves out what TensorFlow merely tells.
    from keras_mgpu.diagnosis.check import check_machine
    from keras_mgpu.diagnosis.machine import NoGPUsError

    try:
        report = check_machine(args.devices, _tell)
    except NoGPUsError as error:
        raise ExitWith(1, f"{error}\n") from error
    args.json.write_text(report.to_json(), encoding="utf-8")
    return _end(report, args.json)


def _tell(name: str) -> None:
    sys.stderr.write(f"Checking: {name}\n")
    sys.stderr.flush()


def _check_writable(path: Path) -> None:
    """Finds out now, not in five minutes. Leaves no empty file behind."""
    try:
        is_new = not path.exists()
        with path.open("a", encoding="utf-8"):
            pass
        if is_new:
            path.unlink()
    except OSError as error:
        raise ValueError(f"Cannot write the report: {error.strerror}. Received: {path}") from error


def _end(report: CheckReport, path: Path) -> str:
    text = (
        f"{page(report)}\n"
        f"Written, without names of people or machines: {path}\n"
        "To help the project, attach this file to an issue on its page.\n"
    )
    if report.has_hung:
        # Python would wait for the thread that hangs, somewhere inside TensorFlow.
        sys.stdout.write(text)
        sys.stdout.flush()
        os._exit(report.exit_code)
    if report.exit_code:
        raise ExitWith(report.exit_code, text)
    return text
