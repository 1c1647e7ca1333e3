"""The command line, `keras-mgpu`.

Each command imports what it needs when it runs, so that help appears immediately and a schedule is
drawn without importing TensorFlow.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from keras_mgpu.cli.check import add_check
from keras_mgpu.cli.checkpoints import add_checkpoints
from keras_mgpu.cli.devices import add_devices
from keras_mgpu.cli.placement import add_placement
from keras_mgpu.cli.schedule import add_schedule
from keras_mgpu.system.terminal import ExitWith


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code.

    Args:
        argv: The arguments after the name of the program. Defaults to those of the process.

    Raises:
        SystemExit: With code 2 after a usage error, and with code 0 after `--help` or `--version`.
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
    """A parser that reports a usage error in a single line, without repeating the usage."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message}\n")


def _parser() -> _Parser:
    from keras_mgpu.version import __version__

    parser = _Parser(
        prog="keras-mgpu",
        description="Shows devices, schedules, placements and checkpoints of Keras models, and "
        "checks a machine.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"keras-mgpu {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    add_devices(commands)
    add_schedule(commands)
    add_checkpoints(commands)
    add_placement(commands)
    add_check(commands)
    return parser


def _write(text: str) -> None:
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader, such as `head`, has closed the pipe. Python flushes again when it exits, and
        # would report an error then.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
