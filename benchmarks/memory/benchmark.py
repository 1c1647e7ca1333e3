"""How much memory does a schedule need?

A schedule decides how many micro-batches wait for their backward pass at once, and each of them
keeps its activations. Here the operating system counts, not the schedule's own arithmetic.
"""

from __future__ import annotations

import resource
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import row_process
from report import Table
from row_process import TWO_CORES_ONE_THREAD_AN_OP

BATCH = 32
NUM_STEPS = 2
SIZE = {"blocks": 4, "tokens": 256}
NEXT_TO_NO_DATA = {"blocks": 4, "width": 32, "heads": 4, "tokens": 8}
QUICK_SIZE = {**NEXT_TO_NO_DATA, "tokens": 16}

AS_IT_COMES: dict[str, str] = {}
# glibc keeps much of what is freed for later. With one arena, and every block of more than 64 KiB
# given back to the system at once, the peak comes close to what is alive.
GIVEN_BACK = {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": "65536"}


@dataclass(frozen=True)
class Row:
    """One way to train the model: plain where there are no options."""

    name: str
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Peaks:
    """Bytes above the start, of one row."""

    as_it_comes: int
    given_back: int
    next_to_no_data: int


WHOLE_BATCH = Row("plain Keras, whole batch")
ROWS = (
    WHOLE_BATCH,
    *(
        Row(
            f"`PipelineSplit`, 2 stages, 16 micro-batches, {schedule}",
            {"micro_batches": 16, "schedule": schedule},
        )
        for schedule in ("gpipe", "1f1b")
    ),
)


def run(quick: bool) -> Table:
    """Measures all rows, each figure in its own process."""
    size = QUICK_SIZE if quick else SIZE
    found = {}
    for row in ROWS:
        peaks = Peaks(
            as_it_comes=_peak_above_start(row, size, AS_IT_COMES),
            given_back=_peak_above_start(row, size, GIVEN_BACK),
            next_to_no_data=_peak_above_start(row, NEXT_TO_NO_DATA, GIVEN_BACK),
        )
        print(f"  {row.name}: {_gigabytes(peaks.as_it_comes)}", flush=True)
        found[row.name] = peaks
    whole = found[WHOLE_BATCH.name]
    return Table(
        columns=(
            "",
            "peak",
            "against the whole batch",
            "peak, freed memory given back",
            "against the whole batch",
            "next to no data",
        ),
        rows=tuple(
            (
                name,
                _gigabytes(peaks.as_it_comes),
                f"{peaks.as_it_comes / whole.as_it_comes:.2f}",
                _gigabytes(peaks.given_back),
                f"{peaks.given_back / whole.given_back:.2f}",
                _gigabytes(peaks.next_to_no_data),
            )
            for name, peaks in found.items()
        ),
    )


def _peak_above_start(row: Row, size: Mapping[str, int], allocator: Mapping[str, str]) -> int:
    task = {"options": row.options, "size": dict(size)}
    cores = TWO_CORES_ONE_THREAD_AN_OP
    found = row_process.measure("memory.benchmark", task, cores, environment=allocator)
    return found["peak"] - found["start"]


def measure(options: dict[str, Any], size: dict[str, int]) -> dict[str, int]:
    """Trains in this process; returns bytes before and at the peak. Loads TensorFlow only here."""
    import keras
    import models

    import keras_mgpu

    devices = keras_mgpu.logical_devices(2)
    keras.utils.set_random_seed(0)
    size = models.TransformerSize(**size)
    model = models.transformer(size)
    if options:
        model = keras_mgpu.PipelineSplit(model, devices=devices, **options)
    model.compile("sgd", "mse")
    x, y = models.sequences(BATCH * NUM_STEPS, size)
    start = _resident_bytes()
    model.fit(x, y, batch_size=BATCH, shuffle=False, verbose=0)
    return {"start": start, "peak": _peak_bytes()}


def _resident_bytes() -> int:
    """What is resident now: the stricter start, since building a model has a peak of its own."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize()


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _gigabytes(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:.2f} GB"
