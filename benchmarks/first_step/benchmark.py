"""How long until training begins?

The time from the start of `fit` to the end of the first step, without what a step takes: Python's
tracing and TensorFlow's building together.
"""

from __future__ import annotations

import statistics
from typing import Any

import row_process
from report import Table
from row_process import TWO_CORES_ONE_THREAD_AN_OP

BATCH = 32
NUM_ROUNDS = 2
NUM_STEPS = 3
QUICK_SIZE = {"blocks": 2, "width": 32, "heads": 2, "tokens": 8}
ROWS: dict[str, dict[str, Any]] = {
    "plain Keras": {},
    "`PipelineSplit`, 1 stage, 1 micro-batch": {"num_devices": 1, "micro_batches": 1},
    "`PipelineSplit`, 2 stages, 4 micro-batches": {"num_devices": 2, "micro_batches": 4},
    "`PipelineSplit`, 2 stages, 32 micro-batches": {"num_devices": 2, "micro_batches": 32},
}
REFERENCE = "`PipelineSplit`, 2 stages, 4 micro-batches"


def run(quick: bool) -> Table:
    """Measures all rows in rounds, each time in a process of its own."""
    found: dict[str, list[dict[str, float]]] = {name: [] for name in ROWS}
    for _ in range(1 if quick else NUM_ROUNDS):
        for name, options in ROWS.items():
            task = {"options": options, "size": QUICK_SIZE if quick else {}}
            result = row_process.measure("first_step.benchmark", task, TWO_CORES_ONE_THREAD_AN_OP)
            found[name].append(result)
            print(f"  {name}: {result['ready']:.1f} s", flush=True)
    ready = {name: statistics.median(r["ready"] for r in each) for name, each in found.items()}
    python = {name: statistics.median(r["python"] for r in each) for name, each in found.items()}
    return Table(
        columns=("", "until ready", "of it Python's tracing", "against 4 micro-batches"),
        rows=tuple(
            (
                name,
                f"{ready[name]:.1f} s",
                f"{python[name]:.1f} s",
                f"{ready[name] / ready[REFERENCE]:.2f}",
            )
            for name in ROWS
        ),
    )


def measure(options: dict[str, Any], size: dict[str, int]) -> dict[str, float]:
    """Trains in this process; returns seconds. TensorFlow is loaded only here."""
    import time

    import keras
    import models
    from step_times import StepTimes

    import keras_mgpu

    keras.utils.set_random_seed(0)
    size = models.TransformerSize(**size)
    devices = keras_mgpu.logical_devices(options.pop("num_devices", 2))
    model = models.transformer(size)
    if options:
        model = keras_mgpu.PipelineSplit(model, devices=devices, **options)
    model.compile("sgd", "mse")
    traced = []
    original = model.train_step

    def train_step(*arguments: Any) -> Any:
        began = time.perf_counter()
        try:
            return original(*arguments)
        finally:
            traced.append(time.perf_counter() - began)

    model.train_step = train_step
    x, y = models.sequences(BATCH * NUM_STEPS, size)
    times = StepTimes()
    model.fit(x, y, batch_size=BATCH, shuffle=False, verbose=0, callbacks=[times])
    return {"ready": times.first - times.median(1), "python": sum(traced)}
