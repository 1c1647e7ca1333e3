"""All checks of a machine, in the order in which a reader wants to know."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from keras_mgpu.diagnosis.copies import check_copies
from keras_mgpu.diagnosis.devices import check_devices
from keras_mgpu.diagnosis.exactness import check_convolution, check_transformer
from keras_mgpu.diagnosis.machine import Machine, find_machine
from keras_mgpu.diagnosis.memory import check_memory
from keras_mgpu.diagnosis.overlap import check_overlap
from keras_mgpu.diagnosis.placement import check_crossings, check_moved_ops
from keras_mgpu.diagnosis.report import CheckReport
from keras_mgpu.diagnosis.runner import Check, run_checks
from keras_mgpu.diagnosis.versions import check_versions
from keras_mgpu.diagnosis.workload import Workload
from keras_mgpu.system.devices import short

MAX_SECONDS = 300


def check_machine(
    names: Sequence[str] | None = None, on_begin: Callable[[str], None] = lambda name: None
) -> CheckReport:
    """Runs all checks.

    Args:
        names: Names of the devices to check. Defaults to all GPUs.
        on_begin: Called with the name of each check before it is run.

    Raises:
        NoGPUsError: If there are no names and no GPUs.
        ValueError: If a device does not exist.
    """
    machine = find_machine(names)
    results = run_checks(checks_of(machine), MAX_SECONDS, on_begin)
    return CheckReport(tuple(map(short, machine.devices)), tuple(results))


def checks_of(machine: Machine) -> dict[str, Check]:
    """Every check, by its name."""
    workload = Workload(machine)
    return {
        "versions": check_versions,
        "devices": partial(check_devices, machine),
        "copies": partial(check_copies, machine),
        "exactness: transformer": partial(check_transformer, machine),
        "exactness: convolution": partial(check_convolution, machine),
        "ops on the CPU": partial(check_moved_ops, workload),
        "what crosses in a step": partial(check_crossings, workload),
        "memory": partial(check_memory, workload),
        "overlap": partial(check_overlap, workload),
    }
