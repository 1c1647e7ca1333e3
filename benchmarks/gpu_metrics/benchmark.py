"""What do GPU metrics cost?

One training run, in which `GPUMetrics` looks for a second and is made to pause for as many steps,
again and again: such neighbours differ less by themselves than whole runs do. Once a second it
reads rings and writes; a shorter turn would have that or not.
Eight GPUs are a stand-in for the driver that answers at once; a real driver takes longer, in the
other thread.
"""

from __future__ import annotations

import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import row_process
from report import Table
from row_process import TWO_CORES_ONE_THREAD_AN_OP, Cores

DRIVER = Path(__file__).parents[2] / "tests" / "support" / "nvml" / "driver.c"
# One core computes, as a host that feeds GPUs has some to spare.
ONE_THREAD = Cores(2, intra_op=1, inter_op=1)
ROWS: dict[str, dict[str, Any]] = {
    "8 GPUs at 10 Hz, steps that wait for 20 ms": {"wait": 0.02, "block": 42, "pairs": 130},
    "8 GPUs at 10 Hz, steps that wait for 100 ms": {"wait": 0.1, "block": 10, "pairs": 60},
    "8 GPUs at 10 Hz, steps that compute": {"width": 512, "block": 30, "pairs": 80},
    "8 GPUs at 1 Hz, steps that wait for 20 ms": {
        "wait": 0.02,
        "interval": 1.0,
        "block": 42,
        "pairs": 60,
    },
    "pipeline, timeline each 100 steps": {
        "width": 512,
        "split": True,
        "block": 10,
        "pairs": 200,
    },
}
NUM_GPUS = 8
STEPS_AN_EPOCH = 100
WARM_UP = 20


def run(quick: bool) -> Table:
    """Measures every row in a process of its own."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "libnvidia-ml.so.1"
        subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", library, DRIVER], check=True)
        for title, options in ROWS.items():
            is_split = options.get("split", False)
            num_gpus = 0 if is_split else NUM_GPUS
            environment = {
                "LD_LIBRARY_PATH": folder,
                "KERAS_MGPU_TEST_GPUS": str(num_gpus),
                "CUDA_VISIBLE_DEVICES": ",".join(map(str, range(num_gpus))) or "-1",
            }
            cores = TWO_CORES_ONE_THREAD_AN_OP if is_split else ONE_THREAD
            task = {"options": {**options, "pairs": 4} if quick else options}
            found = row_process.measure("gpu_metrics.benchmark", task, cores, environment)
            print(f"  {title}: {found}", flush=True)
            low, high = (100 * found[name] for name in ("low", "high"))
            rows.append(
                (
                    title,
                    f"{1000 * found['without']:.1f} ms",
                    f"{100 * found['longer']:+.2f} %",
                    f"{low:+.2f} to {high:+.2f} %",
                    f"{100 * found['thread']:.2f} %",
                )
            )
    return Table(
        columns=("", "step without", "longer by", "95 % of resamples", "a core for its thread"),
        rows=tuple(rows),
    )


def measure(options: dict[str, Any]) -> dict[str, float]:
    """Trains in this process; returns seconds and shares. TensorFlow is loaded only here."""
    import time

    import keras
    import numpy as np
    import tensorflow as tf

    import keras_mgpu as km
    from keras_mgpu.monitoring.monitor import Monitor

    tf.config.set_visible_devices([], "GPU")  # Only the stand-in's.
    model = _make_model(options)
    x, y = np.ones((256, 64), "float32"), np.ones((256, 4), "float32")
    block, num_pairs = options["block"], options["pairs"]
    is_split = options.get("split", False)
    used = [0.0]
    looks, is_looking = Monitor._polls, True

    def timed_looks(self: Any) -> Iterator[Any]:
        for due in looks(self):
            if is_looking:
                begin = time.clock_gettime(time.CLOCK_THREAD_CPUTIME_ID)
                yield due
                used[0] += time.clock_gettime(time.CLOCK_THREAD_CPUTIME_ID) - begin

    Monitor._polls = timed_looks  # type: ignore[method-assign]
    blocks: dict[bool, list[float]] = {False: [], True: []}

    class Turns(keras.callbacks.Callback):
        """Hands on what `fit` tells, in turns of some steps."""

        def __init__(self, looker: Any) -> None:
            super().__init__()
            self.looker, self.num_steps = looker, -WARM_UP

        def set_model(self, model: Any) -> None:
            super().set_model(model)
            self.looker.set_model(model)

        def on_train_begin(self, logs: Any = None) -> None:
            self.looker.on_train_begin()

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self.looker.on_epoch_begin(epoch)

        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            nonlocal is_looking
            turn, place = divmod(self.num_steps, block)
            if turn >= 0 and place == 0:
                # A timeline begins its turn; otherwise the order changes from pair to pair.
                is_looking = (turn % 2 == 0) ^ (not is_split and turn // 2 % 2 == 0)
                self.begin = time.perf_counter()
            if self.num_steps == 0:
                used[0] = 0.0
            if is_split and is_looking and place == 0:
                self.looker._profiling.start(self.looker._progress.step - 1)
            if is_looking:
                self.looker.on_train_batch_begin(batch)

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if is_looking:
                self.looker.on_train_batch_end(batch)
            self.num_steps += 1
            if self.num_steps > 0 and self.num_steps % block == 0:
                blocks[is_looking].append(time.perf_counter() - self.begin)

        def on_train_end(self, logs: Any = None) -> None:
            self.looker.on_train_end()

    with tempfile.TemporaryDirectory() as folder:
        interval = options.get("interval", 1.0 if is_split else 0.1)
        # Of a pipeline, the first step of a turn is traced.
        every = sys.maxsize if is_split else None
        looker = km.GPUMetrics(folder, interval=interval, timeline_every=every)
        num_steps = WARM_UP + 2 * block * num_pairs
        data = tf.data.Dataset.from_tensors((x, y)).repeat(num_steps)
        model.fit(data, verbose=0, callbacks=[Turns(looker)])
        _check_gpus(folder, 0 if is_split else NUM_GPUS)
    without = statistics.fmean(_middle(blocks[False])) / block
    # A timeline costs what it costs once an epoch; everything else costs that all the time.
    whole = without * (STEPS_AN_EPOCH if is_split else block)
    differences = [one - other for one, other in zip(blocks[True], blocks[False])]
    low, high = _interval(differences)
    return {
        "without": without,
        "longer": statistics.fmean(_middle(differences)) / whole,
        "low": low / whole,
        "high": high / whole,
        "thread": used[0] / sum(blocks[True]),
    }


def _make_model(options: dict[str, Any]) -> Any:
    import time

    import keras
    import tensorflow as tf

    import keras_mgpu as km

    devices = km.logical_devices(2)

    class Wait(keras.layers.Layer):
        """A step as the host of a GPU sees it: something is handed over, and then it waits."""

        def call(self, x: Any) -> Any:
            def wait(x: Any) -> Any:
                time.sleep(options["wait"])
                return x

            return tf.ensure_shape(tf.numpy_function(wait, [x], tf.float32), x.shape)

    if "wait" in options:
        layers = [Wait()]
    else:
        layers = [keras.layers.Dense(options["width"], activation="relu") for _ in range(4)]
    model = keras.Sequential([keras.Input((64,)), *layers, keras.layers.Dense(4)])
    if options.get("split"):
        model = km.PipelineSplit(model, devices, micro_batches=4)
    model.compile("sgd", "mse", jit_compile=False)
    return model


def _check_gpus(folder: str, num_gpus: int) -> None:
    """A comparison with GPUs that nobody looked at would show how little they cost."""
    logged = sorted(path.name for path in Path(folder).glob("gpu_*"))
    if len(logged) != num_gpus:
        raise RuntimeError(f"{num_gpus} GPUs were to be looked at, and these were: {logged}")


def _middle(values: Sequence[float]) -> list[float]:
    """Without the tenth at either end, which other processes of the machine are to blame for."""
    ordered = sorted(values)
    cut = len(ordered) // 10
    return ordered[cut : len(ordered) - cut]


def _interval(values: Sequence[float]) -> tuple[float, float]:
    """Where 95 % of the means of random resamples lie."""
    source = random.Random(0)
    means = sorted(
        statistics.fmean(_middle(source.choices(values, k=len(values)))) for _ in range(1000)
    )
    return means[25], means[975]
