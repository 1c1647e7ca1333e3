"""How much memory does a schedule need?

A schedule decides how many micro-batches wait for their backward pass at once, and each of them
keeps its activations. Here the operating system counts, beside the schedule's own arithmetic. The
micro-batch keeps its size, so that more of them make a larger batch.
"""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Any

import row_process
from report import Table
from row_process import TWO_CORES_ONE_THREAD_AN_OP

SAMPLES = 2  # In a micro-batch.
COUNTS = (4, 16, 64)
SIZE = {"blocks": 4, "tokens": 128}
QUICK_SIZE = {"blocks": 4, "width": 32, "heads": 4, "tokens": 16}

# glibc keeps much of what is freed for later. With one arena, and every block of more than 64 KiB
# given back to the system at once, the peak comes close to what is alive.
GIVEN_BACK = {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": "65536"}

WHOLE_BATCH = "plain Keras, whole batch"
ROWS: dict[str, dict[str, Any]] = {
    WHOLE_BATCH: {},
    "1 stage": {"num_devices": 1, "schedule": "1f1b"},
    "gpipe": {"schedule": "gpipe"},
    "1f1b": {"schedule": "1f1b"},
    "1f1b, recompute": {"schedule": "1f1b", "recompute": True},
    "interleaved": {"schedule": "interleaved"},
    "zero_bubble": {"schedule": "zero_bubble"},
}


def run(quick: bool) -> Table:
    """Measures all rows, each figure in its own process."""
    cells: dict[str, list[str]] = {name: [] for name in ROWS}
    for count in COUNTS[:1] if quick else COUNTS:
        whole = 0
        for name, options in ROWS.items():
            task = {
                "options": options,
                "count": count,
                "size": QUICK_SIZE if quick else SIZE,
            }
            cores = TWO_CORES_ONE_THREAD_AN_OP
            found = row_process.measure("memory.benchmark", task, cores, environment=GIVEN_BACK)
            peak = found["peak"] - found["start"]
            whole = whole or peak
            predicted = _gigabytes(found["predicted"]) if found["predicted"] else "-"
            cells[name] += [_gigabytes(peak), f"{peak / whole:.2f}", predicted]
            print(f"  {count} micro-batches, {name}: {_gigabytes(peak)}", flush=True)
    columns = [""]
    for count in COUNTS[:1] if quick else COUNTS:
        columns += [f"M={count}: peak", "of the whole batch", "replay: activations"]
    return Table(tuple(columns), tuple((name, *each) for name, each in cells.items()))


def measure(options: dict[str, Any], count: int, size: dict[str, int]) -> dict[str, float]:
    """Trains in this process; returns bytes before and at the peak. Loads TensorFlow only here."""
    import keras
    import models

    import keras_mgpu

    devices = keras_mgpu.logical_devices(options.pop("num_devices", 2))
    keras.utils.set_random_seed(0)
    size = models.TransformerSize(**size)
    model = models.transformer(size)
    if options:
        model = keras_mgpu.PipelineSplit(model, devices=devices, micro_batches=count, **options)
    model.compile("sgd", "mse")
    x, y = models.sequences(SAMPLES * count, size)
    start = _resident_bytes()
    model.fit(x, y, batch_size=SAMPLES * count, shuffle=False, verbose=0)
    peak = _peak_bytes()
    return {"start": start, "peak": peak, "predicted": _predicted(model) if options else 0}


def _predicted(split: Any) -> float:
    from keras_mgpu.blueprint.timeline import replay

    costs, sizes = split.measure(SAMPLES)
    return sum(replay(split.schedule, costs).peak_memory(sizes))


def _resident_bytes() -> int:
    """What is resident now: the stricter start, since building a model has a peak of its own."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize()


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _gigabytes(num_bytes: float) -> str:
    return f"{num_bytes / 1e9:.2f} GB"
