"""Writes docs/api.md from the docstrings: `make docs`."""

from __future__ import annotations

import inspect
import re
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
    "Devices and workers": ("pick_devices", "logical_devices", "enable_multi_worker_fit"),
}
# What Keras has already told of its own methods.
KERAS_OWN = re.compile(r"on_\w+|set_\w+|(train|test|predict)_step|get_config|from_config")


def text() -> str:
    """The whole page."""
    parts = ["# API\n", "Made from the docstrings by `make docs`; a test compares.\n"]
    for title, names in GROUPS.items():
        parts.append(f"## {title}\n")
        for name in names:
            parts += _entry(f"keras_mgpu.{name}", getattr(keras_mgpu, name), "###")
    return "\n".join(parts)


def _entry(name: str, thing: Any, level: str) -> list[str]:
    parts = [f"{level} `{name}{_signature(thing)}`\n", _markdown(inspect.getdoc(thing) or "")]
    if inspect.isclass(thing):
        for each, member in vars(thing).items():
            if not each.startswith("_") and not KERAS_OWN.fullmatch(each):
                parts += _member(each, member)
    return parts


def _member(name: str, member: Any) -> list[str]:
    """A method or property that the class itself documents."""
    if isinstance(member, property):
        return [f"- `.{name}`: {_first_line(member)}\n"] if member.__doc__ else []
    function = member.__func__ if isinstance(member, (classmethod, staticmethod)) else member
    if not inspect.isfunction(function) or not function.__doc__:
        return []
    return _entry(f".{name}", function, "####")


def _first_line(thing: Any) -> str:
    return (inspect.getdoc(thing) or "").splitlines()[0]


def _signature(thing: Any) -> str:
    """Names and defaults; types are in the code."""
    parameters = [
        each.replace(annotation=inspect.Parameter.empty)
        for each in inspect.signature(thing).parameters.values()
        if each.name not in ("self", "cls")
    ]
    return str(inspect.Signature(parameters))


def _markdown(doc: str) -> str:
    """Sections such as `Args:` become bold, and what they list a list."""
    lines = []
    is_listed = False
    for line in doc.splitlines():
        if line in ("Args:", "Raises:", "Returns:", "Attributes:", "Example:"):
            is_listed = line in ("Args:", "Raises:", "Attributes:")
            lines += [f"**{line.rstrip(':')}**", ""]
        elif is_listed and (match := re.fullmatch(r" {4}(\*?\w+): (.*)", line)):
            lines.append(f"- `{match[1]}`: {match[2]}")
        elif is_listed and line.startswith("     "):
            lines.append(f"  {line.strip()}")
        else:
            is_listed = is_listed and line.startswith(" ")
            lines.append(line.strip() if line.startswith("    ") and "```" not in doc else line)
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    TARGET.write_text(text(), encoding="utf-8")
