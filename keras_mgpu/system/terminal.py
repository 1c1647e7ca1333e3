"""Output for terminals and notebooks, for pipes and files, and as JSON."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import RenderableType


class ExitWith(Exception):
    """Ends a command with a message and a nonzero exit code."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code, self.text = code, text


def add_json(command: argparse.ArgumentParser) -> None:
    command.add_argument("--json", action="store_true", help="print JSON")


def to_json(value: object) -> str:
    return json.dumps(value, indent=2) + "\n"


def render(*parts: RenderableType) -> str:
    from rich.console import Console

    # A pipe has no width, so lines are not wrapped. Names may contain brackets, which would be
    # taken for markup.
    width = None if sys.stdout.isatty() else 100_000
    console = Console(width=width, highlight=False, markup=False)
    with console.capture() as captured:
        for part in parts:
            console.print(part, soft_wrap=True)
    # Tables are padded with trailing blanks.
    return "".join(f"{line.rstrip()}\n" for line in captured.get().splitlines())


def show(*parts: RenderableType) -> None:
    """Prints to the terminal or notebook, or plain lines to a pipe or file."""
    from rich.console import Console

    console = Console(highlight=False, markup=False)
    if console.is_jupyter or console.is_terminal:
        for part in parts:
            console.print(part)
    else:
        sys.stdout.write(render(*parts))
        sys.stdout.flush()


def fold_names(names: Sequence[str], kind: str) -> str:
    """A list of names for a sentence, shortened where it is long.

    >>> fold_names(["norm", "norm_1"], "layers")
    'norm, norm_1'
    >>> fold_names([f"norm_{i}" for i in range(112)], "layers")
    'norm_0 … norm_111 (112 layers)'
    """
    if len(names) <= 4:
        return ", ".join(names)
    return f"{names[0]} … {names[-1]} ({len(names)} {kind})"
