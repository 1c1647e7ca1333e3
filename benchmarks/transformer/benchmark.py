"""Is a split model faster than the other ways of using two devices?

One model, one batch, one optimizer; only the way to use the cores changes from row to row.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import row_process
from report import Table
from row_process import ONE_CORE, TWO_CORES, TWO_CORES_ONE_THREAD_AN_OP, Cores

BATCH = 32
NUM_WARM_UP = 2  # The first step traces; the second still fills caches and pools.
QUICK_SIZE = {"blocks": 2, "width": 32, "heads": 2, "tokens": 8}
BOTH = (TWO_CORES, TWO_CORES_ONE_THREAD_AN_OP)


@dataclass(frozen=True)
class Row:
    """One way to train the model.

    Attributes:
        name: What the table calls it.
        way: A key of `WAYS`.
        tried: Cores and thread settings; the fastest counts.
        options: Arguments for that way.
    """

    name: str
    way: str
    tried: tuple[Cores, ...]
    options: dict[str, Any] = field(default_factory=dict)


PLAIN = Row("plain Keras, two cores", "plain", BOTH)
ROWS = (
    Row("plain Keras, one core", "plain", (ONE_CORE,)),
    PLAIN,
    Row("`tf.device` on each half, two cores", "halves", BOTH),
    Row("`MirroredStrategy`, two cores", "mirrored", BOTH),
    Row(
        "`PipelineSplit`, 1 stage, 1 micro-batch, two cores",
        "split",
        BOTH,
        {"num_stages": 1, "micro_batches": 1},
    ),
    *(
        Row(
            f"`PipelineSplit`, 2 stages, 8 micro-batches, {schedule}, two cores",
            "split",
            (TWO_CORES_ONE_THREAD_AN_OP,),
            {"num_stages": 2, "micro_batches": 8, "schedule": schedule},
        )
        for schedule in ("gpipe", "1f1b")
    ),
)


def run(quick: bool) -> Table:
    """Measures all rows, each in its own process for each thread setting."""
    found = {}
    for row in ROWS:
        tried = [(cores, _measure(row, cores, quick)) for cores in row.tried]
        found[row.name] = min(tried, key=lambda each: each[1]["step"])
    _check_same_training({name: result["loss"] for name, (_, result) in found.items()})
    plain = found[PLAIN.name][1]["step"]
    return Table(
        columns=("", "step", "against plain Keras, two cores", "first step", "threads"),
        rows=tuple(
            (
                name,
                f"{result['step']:.2f} s",
                f"{plain / result['step']:.2f}x",
                f"{result['first']:.1f} s",
                cores.threads,
            )
            for name, (cores, result) in found.items()
        ),
    )


def _measure(row: Row, cores: Cores, quick: bool) -> dict[str, Any]:
    task = {
        "way": row.way,
        "options": row.options,
        "size": QUICK_SIZE if quick else {},
        "num_steps": 4 if quick else 6,
    }
    result = row_process.measure("transformer.benchmark", task, cores)
    print(f"  {row.name} (threads: {cores.threads}): {result['step']:.3f} s a step", flush=True)
    return result


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


def _split(size: Any, num_stages: int, **options: Any) -> Any:
    import models

    import keras_mgpu

    devices = keras_mgpu.logical_devices(num_stages)
    split = keras_mgpu.PipelineSplit(models.transformer(size), devices=devices, **options)
    split.compile("sgd", "mse")
    return split


WAYS = {"plain": _plain, "halves": _halves, "mirrored": _mirrored, "split": _split}
