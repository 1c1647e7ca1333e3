"""Checks: what crosses between devices in a step, and which ops did not run on their GPU."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from keras_mgpu.blueprint.partition import readable_bytes
from keras_mgpu.diagnosis.report import OK, UNKNOWN, WARNING, Finding
from keras_mgpu.diagnosis.workload import Workload
from keras_mgpu.placements.report_warnings import moved_ops
from keras_mgpu.profiling.trace import copies_in

_MAX_LINES = 6


def check_crossings(workload: Workload) -> Finding:
    """Tensors that devices send to one another in a step, and the copies that GPUs made."""
    report = workload.placement
    lines = [
        f"{each.source}→{each.target}: {each.num_tensors} tensors, "
        + readable_bytes(each.num_bytes)
        + (f", {each.num_unknown} of unknown size" if each.num_unknown else "")
        for each in report.edges
    ]
    trace, _ = workload.trace
    copies = {} if trace is None else copies_in(trace)
    for index, kinds in sorted(copies.items()):
        counts = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
        lines.append(f"GPU:{index} as profiled: {counts or 'no copies'}")
    if not copies and workload.machine.has_gpus_only:
        lines.append("How many copies GPUs made is not known: the profiler did not see them.")
    data: dict[str, Any] = {
        "edges": [asdict(each) for each in report.edges],
        "copies": {f"GPU:{index}": dict(kinds) for index, kinds in copies.items()},
    }
    return Finding(OK, _some(lines), data)


def check_moved_ops(workload: Workload) -> Finding:
    """Ops that asked for a GPU, and ran on the CPU."""
    report = workload.placement
    if not workload.machine.has_gpus_only:
        return Finding(UNKNOWN, ("Without GPUs, no op can fall back to the CPU.",))
    num_ops = {each.device: each.num_ops for each in report.devices}
    data = {"moved": [asdict(each) for each in report.moved], "num_ops": num_ops}
    if not report.moved:
        return Finding(OK, ("Every op ran on the device of its stage.",), data)
    return Finding(WARNING, _some(moved_ops(report.moved)), data)


def _some(lines: list[str]) -> tuple[str, ...]:
    if len(lines) <= _MAX_LINES:
        return tuple(lines)
    return (*lines[: _MAX_LINES - 1], f"… and {len(lines) - _MAX_LINES + 1} more in the file.")
