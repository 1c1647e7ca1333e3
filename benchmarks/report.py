"""Tables: printed while the benchmarks run, and written into their READMEs.

A figure that nobody copies by hand cannot be copied wrongly.
"""

from __future__ import annotations

import datetime
import os
import platform
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from rich.console import Console
from rich.table import Table as RichTable

BEGIN = "<!-- measured: `make bench` writes what stands here -->"
END = "<!-- /measured -->"


@dataclass(frozen=True)
class Table:
    """What a benchmark found: cells as text, the first column names the row."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def markdown(self) -> str:
        rule = ("---", *("---:" for _ in self.columns[1:]))
        return "\n".join(f"| {' | '.join(cells)} |" for cells in (self.columns, rule, *self.rows))

    def show(self, title: str) -> None:
        table = RichTable(*map(_plain_text, self.columns), title=title)
        for column in table.columns[1:]:
            column.justify = "right"
        for row in self.rows:
            table.add_row(*map(_plain_text, row))
        Console().print(table)


def _plain_text(cell: str) -> str:
    return cell.replace("`", "")


def write_readme(readme: Path, table: Table, other_cores: float) -> None:
    """Replaces what stands between the markers by the table and the environment.

    Args:
        readme: The file.
        table: What was found.
        other_cores: How many cores other processes used meanwhile.
    """
    text = readme.read_text(encoding="utf-8")
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{readme} must hold the lines {BEGIN!r} and {END!r}.")
    measured = f"\n{table.markdown()}\n\n## Environment\n\n{_environment(other_cores)}\n"
    readme.write_text(f"{before}{BEGIN}{measured}{END}{after}", encoding="utf-8")


def _environment(other_cores: float) -> str:
    """Where and when it was measured, as a Markdown list."""
    versions = ", ".join(
        f"{name} {metadata.version(package)}"
        for name, package in (("TensorFlow", _tensorflow_package()), ("Keras", "keras"))
    )
    return "\n".join(
        [
            f"- CPU: {_cpu_model()}, {os.cpu_count()} cores",
            f"- {platform.system()}, Python {platform.python_version()}, {versions}",
            f"- other processes used {other_cores:.2f} cores meanwhile",
            f"- {datetime.date.today().isoformat()}",
        ]
    )


def _tensorflow_package() -> str:
    """The package that TensorFlow was installed as: simulated GPUs need one without CUDA."""
    return metadata.packages_distributions()["tensorflow"][0]


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
