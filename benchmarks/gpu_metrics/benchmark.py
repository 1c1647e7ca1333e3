"""What do GPU metrics cost?

Steps of 20 ms and more, with and without `GPUMetrics`, alternating in one run. Eight GPUs are a
stand-in for the driver that answers at once; a real driver takes longer, in the other thread.
"""

from __future__ import annotations

import statistics
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import row_process
from report import Table
from row_process import TWO_CORES_ONE_THREAD_AN_OP, Cores

DRIVER = Path(__file__).parents[2] / "tests" / "nvml" / "driver.c"
# One core computes, as a host that feeds GPUs has some to spare.
ONE_THREAD = Cores(2, intra_op=1, inter_op=1)
ROWS: dict[str, dict[str, Any]] = {
    "8 GPUs at 10 Hz, steps of 20 ms": {"interval": 0.1, "width": 512},
    "8 GPUs at 10 Hz, steps of 100 ms": {"interval": 0.1, "width": 1200},
    "8 GPUs at 1 Hz, steps of 20 ms": {"interval": 1.0, "width": 512},
    "no GPUs, pipeline, timeline each epoch": {"interval": 1.0, "width": 512, "split": True},
}
NUM_ROUNDS = 12
STEPS = 100


def run(quick: bool) -> Table:
    """Measures every row in a process of its own."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "libnvidia-ml.so.1"
        subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", library, DRIVER], check=True)
        for title, options in ROWS.items():
            is_split = options.get("split", False)
            environment = {
                "LD_LIBRARY_PATH": folder,
                "KERAS_MGPU_TEST_GPUS": "0" if is_split else "8",
            }
            task = {"options": options, "rounds": 2 if quick else NUM_ROUNDS}
            cores = TWO_CORES_ONE_THREAD_AN_OP if is_split else ONE_THREAD
            found = row_process.measure("gpu_metrics.benchmark", task, cores, environment)
            print(f"  {title}: {found}", flush=True)
            rows.append(
                (
                    title,
                    f"{1000 * found['without']:.1f} ms",
                    f"{1000 * found['with']:.1f} ms",
                    f"{100 * (found['ratio'] - 1):+.2f} %",
                    f"{100 * found['thread']:.2f} %",
                )
            )
    return Table(
        columns=("", "step without", "with", "longer by", "processor time of its thread"),
        rows=tuple(rows),
    )


def measure(options: dict[str, Any], rounds: int) -> dict[str, float]:
    """Trains in this process; returns seconds. TensorFlow is loaded only here."""
    import time

    import keras
    import numpy as np
    import tensorflow as tf

    import keras_mgpu as km
    from keras_mgpu.monitoring.monitor import Monitor

    devices = km.logical_devices(2)
    hidden = [keras.layers.Dense(options["width"], activation="relu") for _ in range(4)]
    model = keras.Sequential([keras.Input((64,)), *hidden, keras.layers.Dense(4)])
    if options.get("split"):
        model = km.PipelineSplit(model, devices, micro_batches=4)
    model.compile("sgd", "mse", jit_compile=False)
    x = np.ones((256 * STEPS, 64), "float32")
    y = np.ones((256 * STEPS, 4), "float32")
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(256).cache().prefetch(2)
    model.fit(data.take(3), verbose=0)
    used: list[float] = []
    run = Monitor._run

    def timed_run(self: Any) -> None:
        run(self)
        used.append(time.clock_gettime(time.CLOCK_THREAD_CPUTIME_ID))

    Monitor._run = timed_run  # type: ignore[method-assign]
    seconds: dict[bool, list[float]] = {False: [], True: []}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(rounds):
            for looks in (False, True) if number % 2 else (True, False):
                callbacks = []
                if looks:
                    callbacks = [km.GPUMetrics(f"{folder}/{number}", options["interval"])]
                start = time.perf_counter()
                model.fit(data, verbose=0, callbacks=callbacks)
                seconds[looks].append((time.perf_counter() - start) / STEPS)
    ratios = [a / b for a, b in zip(seconds[True], seconds[False])]
    return {
        "without": statistics.median(seconds[False]),
        "with": statistics.median(seconds[True]),
        "ratio": statistics.median(ratios),
        "thread": sum(used) / (STEPS * sum(seconds[True])),
    }
