"""A report as a page of text, no wider than a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from keras_mgpu.diagnosis.report import FAILED, UNKNOWN, WARNING, CheckReport, CheckResult

WIDTH = 80
_INDENT = " " * 9
_MAX_CHARACTERS = 400  # Of a line: messages of TensorFlow may fill pages.


def page(report: CheckReport) -> str:
    """Returns the text, which ends with what it all amounts to."""
    devices = textwrap.shorten(", ".join(report.devices), WIDTH - 20, placeholder=" …")
    blocks = [f"Checked {devices}.", *map(_block, report.results), _conclusion(report)]
    return "\n".join(blocks) + "\n"


def _block(result: CheckResult) -> str:
    return "\n".join([f"{result.status:7}  {result.name}", *_wrapped(result)])


def _wrapped(result: CheckResult) -> Iterator[str]:
    for line in result.finding.lines:
        short = textwrap.shorten(line, _MAX_CHARACTERS, placeholder=" …")
        yield from textwrap.wrap(
            short, WIDTH, initial_indent=_INDENT, subsequent_indent=f"{_INDENT}  "
        )


def _conclusion(report: CheckReport) -> str:
    """Says how many checks are not fine, the worst first."""
    words = {FAILED: "failed", WARNING: "with a warning", UNKNOWN: "unknown"}
    counts = {status: len(report.with_status(status)) for status in words}
    found = [f"{counts[status]} {word}" for status, word in words.items() if counts[status]]
    total = len(report.results)
    return f"{total} checks: {', '.join(found)}." if found else f"{total} checks: all fine."
