"""Do other models than a transformer gain as well?

A residual conv net and a wide MLP, so that nothing is tuned to one model. Everything as in the
transformer's benchmark.
"""

from __future__ import annotations

import statistics
from typing import Any

import row_process
from report import Table
from row_process import ONE_CORE, TWO_CORES, TWO_CORES_ONE_THREAD_AN_OP, Cores

NUM_ROUNDS = 1
NUM_WARM_UP = 2
MICRO_BATCHES = 8
IDEAL = 2 * MICRO_BATCHES / (MICRO_BATCHES + 1)
MODELS = {
    "residual conv net, 32x32 images, batch 64": ("conv_net", 64),
    "MLP, 6 x 2048, batch 512": ("mlp", 512),
}
ALONE = "1 stage, 8 micro-batches, one core"
PLAIN = "plain Keras, two cores"
WAYS: dict[str, tuple[Cores, dict[str, Any]]] = {
    PLAIN: (TWO_CORES, {}),
    "1 stage, 1 micro-batch, two cores": (TWO_CORES, {"num_devices": 1, "micro_batches": 1}),
    ALONE: (ONE_CORE, {"num_devices": 1, "micro_batches": MICRO_BATCHES}),
    **{
        f"2 devices, 8 micro-batches, {schedule}": (
            TWO_CORES_ONE_THREAD_AN_OP,
            {"num_devices": 2, "micro_batches": MICRO_BATCHES, "schedule": schedule},
        )
        for schedule in ("gpipe", "1f1b", "zero_bubble")
    },
}


def run(quick: bool) -> Table:
    """Measures both models in all ways, in rounds, each time in a process of its own."""
    rows = []
    for title, (model, batch) in MODELS.items():
        found: dict[str, list[float]] = {way: [] for way in WAYS}
        for _ in range(1 if quick else NUM_ROUNDS):
            for way, (cores, options) in WAYS.items():
                task = {
                    "model": model,
                    "batch": 16 if quick else batch,
                    "options": options,
                    "num_steps": 4 if quick else 10,
                }
                result = row_process.measure("other_models.benchmark", task, cores)
                found[way].append(result["step"])
                print(f"  {model}, {way}: {result['step']:.3f} s a step", flush=True)
        steps = {way: statistics.median(seconds) for way, seconds in found.items()}
        for way, step in steps.items():
            is_pipelined = way.startswith("2 devices")
            of_ideal = f"{steps[ALONE] / step / IDEAL:.2f}" if is_pipelined else "-"
            against = f"{steps[PLAIN] / step:.2f}x"
            rows.append((f"{title}: {way}", f"{1000 * step:.0f} ms", against, of_ideal))
    columns = ("", "step", "against plain Keras, two cores", "of the ideal")
    return Table(columns, tuple(rows))


def measure(model: str, batch: int, options: dict[str, Any], num_steps: int) -> dict[str, float]:
    """Trains in this process; returns seconds. TensorFlow is loaded only here."""
    import warnings

    import keras
    import models
    from step_times import StepTimes

    import keras_mgpu

    warnings.simplefilter("ignore")  # Batch normalization depends on micro-batches, and says so.
    keras.utils.set_random_seed(0)
    devices = keras_mgpu.logical_devices(options.pop("num_devices", 2))
    num = batch * num_steps
    if model == "mlp":
        trainer, (x, y) = models.mlp(2048, depth=6), models.vectors(num, 2048)
    else:
        trainer, (x, y) = models.residual_conv_net((32, 64, 128)), models.images(num)
    if options:
        trainer = keras_mgpu.PipelineSplit(trainer, devices=devices, **options)
    trainer.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    times = StepTimes()
    trainer.fit(x, y, batch_size=batch, shuffle=False, verbose=0, callbacks=[times])
    return {"step": times.median(NUM_WARM_UP)}
