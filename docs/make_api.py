"""Writes docs/api.md from the docstrings: `make docs`."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import keras_mgpu

TARGET = Path(__file__).with_name("api.md")
GROUPS = {
    "Splitting a model": ("PipelineSplit", "plan", "PartitionPlan", "VerifyReport"),
    "Schedules": ("Schedule", "replay", "Timeline"),
    "Checkpoints": (
        "DistributedCheckpoint",
        "resumable",
        "save_checkpoint",
        "restore_checkpoint",
        "latest_checkpoint",
    ),
    "Placement": ("DevicePlacementLogger", "placement", "assert_placement", "PlacementReport"),
    "Metrics": ("GPUMetrics",),
    "Devices and workers": (
        "pick_devices",
        "prepare_gpus",
        "logical_devices",
        "enable_multi_worker_fit",
    ),
}
# Methods that Keras documents or calls, and hooks of our own base classes.
HOOKS = re.compile(r"before_use|on_\w+|set_\w+|(train|test|predict)_step|get_config|from_config")
LISTS = ("Args:", "Raises:", "Attributes:")
SECTIONS = (*LISTS, "Returns:", "Example:")


def text() -> str:
    """Returns the whole page."""
    parts = [
        "# API\n",
        "Generated from the docstrings by `make docs`. A test checks that it is up to date.\n",
    ]
    for title, names in GROUPS.items():
        parts.append(f"## {title}\n")
        for name in names:
            parts += _entry(f"keras_mgpu.{name}", getattr(keras_mgpu, name), "###")
    return "\n".join(parts)


def _entry(name: str, thing: Any, level: str) -> list[str]:
    parts = [f"{level} `{name}{_signature(thing)}`\n", _markdown(inspect.getdoc(thing) or "")]
    if inspect.isclass(thing):
        for each, member in vars(thing).items():
            if not each.startswith("_") and not HOOKS.fullmatch(each):
                parts += _member(each, member)
    return parts


def _member(name: str, member: Any) -> list[str]:
    """Documents a method or property that the class itself defines."""
    if isinstance(member, property):
        return [f"- `.{name}`: {_first_line(member)}\n"] if member.__doc__ else []
    function = member.__func__ if isinstance(member, (classmethod, staticmethod)) else member
    if not inspect.isfunction(function) or not function.__doc__:
        return []
    return _entry(f".{name}", function, "####")


def _first_line(thing: Any) -> str:
    return (inspect.getdoc(thing) or "").splitlines()[0]


def _signature(thing: Any) -> str:
    """Returns the names and defaults of all parameters, without their types."""
    parameters = [
        each.replace(annotation=inspect.Parameter.empty)
        for each in inspect.signature(thing).parameters.values()
        if each.name not in ("self", "cls")
    ]
    return str(inspect.Signature(parameters))


def _markdown(doc: str) -> str:
    """Formats a docstring: section titles in bold, arguments as lists, doctests as code blocks."""
    lines: list[str] = []
    section = ""
    is_code = False
    for line in _fence_doctests(doc.splitlines()):
        is_fence = line.lstrip().startswith("```")
        is_code ^= is_fence
        if is_code or is_fence:
            lines.append(line)
        elif line in SECTIONS:
            section = line
            lines += [f"**{line.rstrip(':')}**", ""]
        else:
            section = section if line.startswith(" ") or not line else ""
            lines.append(_listed(line) if section in LISTS else line.removeprefix("    "))
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)) + "\n"


def _listed(line: str) -> str:
    """An argument as an item of a list, or one more line of it."""
    if match := re.fullmatch(r" {4}(\*?\w+): (.*)", line):
        return f"- `{match[1]}`: {match[2]}"
    return f"  {line.strip()}".rstrip()


def _fence_doctests(lines: Sequence[str]) -> Iterator[str]:
    """Puts every doctest into a code block. It ends at the next empty line."""
    is_open = False
    for line in lines:
        if line.startswith(">>>") and not is_open:
            is_open = True
            yield "```pycon"
        elif not line and is_open:
            is_open = False
            yield "```"
        yield line
    if is_open:
        yield "```"


if __name__ == "__main__":
    TARGET.write_text(text(), encoding="utf-8")
