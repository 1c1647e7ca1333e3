"""What the checks of a machine have found, as plain data that is printed and written to JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

VERSION = 1
FILE_NAME = "keras-mgpu-check.json"
OK, WARNING, FAILED, UNKNOWN = "ok", "warning", "failed", "unknown"
_FROM_BAD_TO_GOOD = (FAILED, WARNING, OK, UNKNOWN)


def worst(statuses: Iterable[str]) -> str:
    """The status of several findings together: unknown only if nothing is known.

    >>> worst(["ok", "warning", "unknown"]), worst(["unknown", "ok"]), worst([])
    ('warning', 'ok', 'unknown')
    """
    return min(statuses, key=_FROM_BAD_TO_GOOD.index, default=UNKNOWN)


@dataclass(frozen=True)
class Finding:
    """What one check has found.

    Args:
        status: `"ok"`, `"warning"`, `"failed"`, or `"unknown"` if it cannot be known here.
        lines: Sentences for the reader.
        data: Everything that was measured, for JSON.
    """

    status: str
    lines: tuple[str, ...] = ()
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class CheckResult:
    """One check that was run.

    Args:
        name: What was checked.
        finding: What was found.
        seconds: How long it took.
        warnings: Warnings that were issued meanwhile.
        has_ended: Whether it is done. One that hangs is not.
    """

    name: str
    finding: Finding
    seconds: float = 0.0
    warnings: tuple[str, ...] = ()
    has_ended: bool = True

    @property
    def status(self) -> str:
        return self.finding.status


@dataclass(frozen=True)
class CheckReport:
    """All checks of a machine.

    Args:
        devices: The devices that were checked.
        results: One per check, in the order in which they were run.
    """

    devices: tuple[str, ...]
    results: tuple[CheckResult, ...]

    def with_status(self, status: str) -> list[CheckResult]:
        return [each for each in self.results if each.status == status]

    @property
    def has_hung(self) -> bool:
        """Whether a check is still running, which may keep the process from ending."""
        return not all(each.has_ended for each in self.results)

    @property
    def exit_code(self) -> int:
        """1 if something is wrong, else 0. Warnings and what is unknown are not wrong."""
        return int(bool(self.with_status(FAILED)))

    def to_json(self) -> str:
        checks = [
            {
                "name": each.name,
                **asdict(each.finding),
                "seconds": round(each.seconds, 3),
                "warnings": list(each.warnings),
            }
            for each in self.results
        ]
        fields = {"version": VERSION, "devices": list(self.devices), "checks": checks}
        return json.dumps(fields, indent=1, default=str) + "\n"
