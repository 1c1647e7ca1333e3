"""Check: do the devices work at the same time, as the schedule says they should?"""

from __future__ import annotations

from typing import Any

from keras_mgpu.diagnosis.report import OK, UNKNOWN, WARNING, Finding
from keras_mgpu.diagnosis.workload import Workload
from keras_mgpu.profiling.short_stages import advice, short_stages
from keras_mgpu.profiling.trace import device_shares, outline_of

ENOUGH = 0.5  # Of the time that overlap could save.


def check_overlap(workload: Workload) -> Finding:
    """Compares a step with its parts one after the other, and with the prediction."""
    split, predicted = workload.split, workload.predicted
    step = workload.step_seconds
    serial = sum(span.end - span.start for span in predicted.spans)
    profiled = split.profile(*workload.batch)
    trace, seconds = workload.trace
    busy = {} if trace is None else device_shares(trace, seconds)
    data: dict[str, Any] = {
        "schedule": split.schedule.name,
        "micro_batches": split.micro_batches,
        "samples_per_micro_batch": workload.num_samples,
        "step_seconds": step,
        "serial_seconds": serial,
        "predicted_seconds": predicted.makespan,
        "forward_seconds": list(workload.measured[0].per_stage("F", len(split.stages))),
        "backward_seconds": list(workload.measured[0].per_stage("B", len(split.stages))),
        "bubble": {
            "predicted_from_single_ops": predicted.bubble,
            "profiled": profiled.timeline.bubble,
            "predicted_from_profile": profiled.predicted.bubble,
        },
        "trace": [] if trace is None else outline_of(trace),
        "kernels_ran": {f"GPU:{index}": shares.busy for index, shares in busy.items()},
    }
    lines = [
        f"A step takes {1e3 * step:.1f} ms. Its {split.micro_batches} micro-batches would take "
        f"{1e3 * serial:.1f} ms one op after the other; {1e3 * predicted.makespan:.1f} ms are "
        "predicted with overlap.",
        f"Bubble: {profiled.timeline.bubble:.0%} as profiled on the host, "
        f"{profiled.predicted.bubble:.0%} predicted.",
    ]
    if busy:
        shares = ", ".join(f"{name} {share:.0%}" for name, share in data["kernels_ran"].items())
        lines.append(f"Share of the step in which kernels ran: {shares}.")
    status, line = judge(workload, serial, predicted.makespan)
    lines.append(line)
    short = short_stages(workload.measured[0], split.devices)
    if short:
        lines.append(advice(short))
        status = WARNING
    return Finding(status, tuple(lines), data)


def judge(workload: Workload, serial: float, predicted: float) -> tuple[str, str]:
    """The status of a step, and why.

    Args:
        workload: What was timed.
        serial: Seconds of all ops one after the other.
        predicted: Seconds with overlap.
    """
    if len(workload.machine.devices) == 1:
        return UNKNOWN, "A single device has nothing to overlap with."
    if not workload.machine.has_gpus_only:
        return UNKNOWN, "Logical CPU devices share processors, so that speed says nothing."
    if predicted >= serial:
        return UNKNOWN, "No overlap is predicted for this schedule."
    share = (serial - workload.step_seconds) / (serial - predicted)
    words = f"{max(0.0, share):.0%} of the time that overlap can save is saved."
    return (OK if share >= ENOUGH else WARNING), words
