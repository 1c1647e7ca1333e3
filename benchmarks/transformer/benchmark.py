"""Is a split model faster than the other ways of using two devices?

One model, one batch, one optimizer; only the way to use the cores changes from row to row. The rows
that are held against each other are measured twice: a machine that slows down slows down all.
"""

from __future__ import annotations

import importlib.util
import json
import math
import statistics
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import row_process
from report import Table
from row_process import ONE_CORE, TWO_CORES, TWO_CORES_ONE_THREAD_AN_OP, Cores

BATCH = 32
MICRO_BATCHES = 8
NUM_WARM_UP = 2  # The first step traces; the second still fills caches and pools.
SIZE = {"blocks": 8, "width": 256, "heads": 4, "tokens": 128}
QUICK_SIZE = {"blocks": 4, "width": 32, "heads": 2, "tokens": 8}
IDEAL = 2 * MICRO_BATCHES / (MICRO_BATCHES + 1)


@dataclass(frozen=True)
class Row:
    """One way to train the model.

    Attributes:
        name: What the table calls it.
        way: A key of `WAYS`, or `"torch"`.
        cores: Where it runs.
        options: Arguments for that way.
        is_held_against_others: Whether it stands in a ratio that has a goal.
    """

    name: str
    way: str
    cores: Cores
    options: dict[str, Any] = field(default_factory=dict)
    is_held_against_others: bool = False


def _split_row(schedule: str, what: str = "", **options: Any) -> Row:
    name = f"`PipelineSplit`, 2 devices, 8 micro-batches, {schedule}{what}"
    options = {"num_devices": 2, "micro_batches": MICRO_BATCHES, "schedule": schedule, **options}
    is_plain = schedule in ("1f1b", "zero_bubble") and not what
    return Row(name, "split", TWO_CORES_ONE_THREAD_AN_OP, options, is_plain)


ONE = {"num_devices": 1}
PLAIN = Row("plain Keras, two cores", "plain", TWO_CORES)
ALONE = Row(
    "`PipelineSplit`, 1 stage, 8 micro-batches, one core",
    "split",
    ONE_CORE,
    {**ONE, "micro_batches": MICRO_BATCHES},
    is_held_against_others=True,
)
TORCH_ALONE = Row("torch, 8 micro-batches, one core", "torch", ONE_CORE, {"way": "alone"})
TORCH = Row("torch.distributed.pipelining, 1F1B", "torch", TWO_CORES, {"way": "pipeline"}, True)
ROWS = (
    Row("plain Keras, one core", "plain", ONE_CORE),
    PLAIN,
    Row("`tf.device` on each half, two cores", "halves", TWO_CORES),
    Row("`MirroredStrategy`, two cores", "mirrored", TWO_CORES_ONE_THREAD_AN_OP),
    Row(
        "`PipelineSplit`, 1 stage, 1 micro-batch, two cores",
        "split",
        TWO_CORES,
        {**ONE, "micro_batches": 1},
    ),
    ALONE,
    _split_row("gpipe"),
    _split_row("1f1b"),
    _split_row("interleaved"),
    _split_row("zero_bubble"),
    _split_row("1f1b", ", recompute", recompute=True),
    _split_row("1f1b", ", XLA", jit_compile=True),
    TORCH_ALONE,
    TORCH,
)


def run(quick: bool) -> Table:
    """Measures all rows in rounds, each time in a process of its own."""
    rows = [row for row in ROWS if row.way != "torch" or importlib.util.find_spec("torch")]
    found: dict[str, list[dict[str, Any]]] = {row.name: [] for row in rows}
    again = [] if quick else [row for row in rows if row.is_held_against_others]
    for row in (*rows, *again):
        result = _measure(row, quick)
        found[row.name].append(result)
        print(f"  {row.name}: {result['step']:.3f} s a step", flush=True)
    _check_same_training({n: rs[0]["loss"] for n, rs in found.items() if "loss" in rs[0]})
    steps = {name: statistics.median(r["step"] for r in results) for name, results in found.items()}
    return Table(
        columns=("", "step", "against plain Keras, two cores", "of the ideal", "first step"),
        rows=tuple(
            (
                row.name,
                f"{steps[row.name]:.2f} s",
                f"{steps[PLAIN.name] / steps[row.name]:.2f}x",
                _of_ideal(row, steps),
                _first(found[row.name]),
            )
            for row in rows
        ),
    )


def _of_ideal(row: Row, steps: Mapping[str, float]) -> str:
    """Speed-up over one core with the same micro-batches, as a part of 2M/(M+1)."""
    if row.way not in ("split", "torch") or row in (ALONE, TORCH_ALONE):
        return "-"
    if row.way == "split" and row.options["num_devices"] == 1:
        return "-"
    alone = TORCH_ALONE if row.way == "torch" else ALONE
    return f"{steps[alone.name] / steps[row.name] / IDEAL:.2f}"


def _first(results: list[dict[str, Any]]) -> str:
    if "first" not in results[0]:
        return "-"
    return f"{statistics.median(result['first'] for result in results):.1f} s"


def _measure(row: Row, quick: bool) -> dict[str, Any]:
    size, num_steps = (QUICK_SIZE, 4) if quick else (SIZE, 5)
    if row.way == "torch":
        return _measure_torch(row.options, size, num_steps)
    task = {"way": row.way, "options": row.options, "size": size, "num_steps": num_steps}
    return row_process.measure("transformer.benchmark", task, row.cores)


def _measure_torch(options: dict[str, Any], size: dict[str, int], num_steps: int) -> Any:
    order = {"micro_batches": MICRO_BATCHES, "batch": BATCH, "size": size, "num_steps": num_steps}
    script = Path(__file__).parent / "torch_pipeline.py"
    ran = subprocess.run(
        [sys.executable, str(script), json.dumps({**order, **options})],
        capture_output=True,
        text=True,
    )
    if ran.returncode != 0:
        raise RuntimeError(f"torch failed with {options}:\n{ran.stderr[-3000:]}")
    return json.loads(ran.stdout.splitlines()[-1])


def _check_same_training(losses: dict[str, float]) -> None:
    """Rows that end at different losses did different work and cannot be compared."""
    expected = losses[PLAIN.name]
    if not all(math.isclose(loss, expected, rel_tol=1e-3) for loss in losses.values()):
        raise RuntimeError(f"The rows trained to different losses: {losses}")


def measure(
    way: str, options: dict[str, Any], size: dict[str, int], num_steps: int
) -> dict[str, float]:
    """Trains in this process; returns seconds and the loss. TensorFlow is loaded only here."""
    import keras
    import models
    from step_times import StepTimes

    keras.utils.set_random_seed(0)
    size = models.TransformerSize(**size)
    model = WAYS[way](size, **options)
    x, y = models.sequences(BATCH * num_steps, size)
    times = StepTimes()
    history = model.fit(x, y, batch_size=BATCH, shuffle=False, verbose=0, callbacks=[times])
    return {
        "step": times.median(NUM_WARM_UP),
        "first": times.first,
        "loss": history.history["loss"][-1],
    }


def _plain(size: Any) -> Any:
    import models

    model = models.transformer(size)
    model.compile("sgd", "mse")
    return model


def _halves(size: Any) -> Any:
    """What one writes without this package: each half of the layers under its own device."""
    import dataclasses

    import keras
    import models
    import tensorflow as tf

    import keras_mgpu

    devices = keras_mgpu.logical_devices(2)
    half = dataclasses.replace(size, blocks=size.blocks // 2)

    class Halves(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.halves = []
            for device in devices:
                with tf.device(device):
                    self.halves.append(models.transformer(half))

        def call(self, x: Any) -> Any:
            for device, layers in zip(devices, self.halves):
                with tf.device(device):
                    x = layers(x)
            return x

    model = Halves()
    model.compile("sgd", "mse")
    return model


def _mirrored(size: Any) -> Any:
    """Each device holds the whole model and takes half of the batch."""
    import tensorflow as tf

    import keras_mgpu

    with tf.distribute.MirroredStrategy(keras_mgpu.logical_devices(2)).scope():
        return _plain(size)


def _split(size: Any, num_devices: int, **options: Any) -> Any:
    import models

    import keras_mgpu

    devices = keras_mgpu.logical_devices(num_devices)
    split = keras_mgpu.PipelineSplit(models.transformer(size), devices=devices, **options)
    split.compile("sgd", "mse")
    return split


WAYS = {"plain": _plain, "halves": _halves, "mirrored": _mirrored, "split": _split}
