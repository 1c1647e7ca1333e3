"""Does the replay predict the measured step, and what does it say for many devices?

Costs are measured by running each stage's functions alone on one core. The replay puts them in the
order of the schedule. The same costs, with more stages of the same size and a link between the
devices, then tell on paper what cannot be measured here.
"""

from __future__ import annotations

from typing import Any

import row_process
from report import Table
from row_process import ONE_CORE, TWO_CORES_ONE_THREAD_AN_OP

BATCH = 32
MICRO_BATCHES = 8
QUICK_SIZE = {"blocks": 4, "width": 32, "heads": 2, "tokens": 8}
SCHEDULES = ("gpipe", "1f1b", "interleaved", "zero_bubble")
DEVICES = (2, 4, 8, 16, 32, 64)
LINK = 16e9  # Bytes a second: PCIe 4.0 with 16 lanes gives about half as much again.


def run(quick: bool) -> Table:
    """Predicts and measures two devices, then predicts more."""
    from keras_mgpu.blueprint.named_schedules import make
    from keras_mgpu.blueprint.timeline import Costs, replay

    rows, costs_of = [], {}
    for schedule in SCHEDULES:
        task = {"schedule": schedule, "size": QUICK_SIZE if quick else {}}
        alone = row_process.measure("prediction.benchmark", {**task, "costs": True}, ONE_CORE)
        cores = TWO_CORES_ONE_THREAD_AN_OP
        step = row_process.measure("prediction.benchmark", {**task, "costs": False}, cores)["step"]
        costs_of[schedule] = alone
        costs = Costs(alone["forward"], alone["backward"], alone["weight"])
        num_stages = len(alone["forward"])
        predicted = replay(make(schedule, num_stages, MICRO_BATCHES, 2), costs)
        ratio = predicted.makespan / step
        print(f"  {schedule}: predicted {predicted.makespan:.2f} s, {step:.2f} s", flush=True)
        rows.append(
            (
                f"2 devices, {schedule}",
                f"{predicted.makespan:.2f} s",
                f"{step:.2f} s",
                f"{ratio:.2f}",
                f"{predicted.bubble:.1%}",
            )
        )
    for num in DEVICES[1:]:
        rows += [_on_paper(num, schedule, costs_of[schedule]) for schedule in SCHEDULES]
    columns = ("", "predicted", "measured", "predicted / measured", "bubble")
    return Table(columns, tuple(rows))


def _on_paper(num_devices: int, schedule: str, measured: dict[str, Any]) -> tuple[str, ...]:
    """A model of so many times the size, cut into stages of the size that was measured."""
    from keras_mgpu.blueprint.named_schedules import make
    from keras_mgpu.blueprint.timeline import Costs, replay

    num_stages = num_devices * (2 if schedule == "interleaved" else 1)
    mean = {kind: sum(measured[kind]) / len(measured[kind]) for kind in KINDS}
    costs = Costs(*mean.values(), transfer=measured["bytes_between"] / LINK)
    timeline = replay(make(schedule, num_stages, 4 * num_devices, num_devices), costs)
    name = f"{num_devices} devices, {4 * num_devices} micro-batches, {schedule}"
    return name, f"{timeline.makespan:.2f} s", "-", "-", f"{timeline.bubble:.1%}"


KINDS = ("forward", "backward", "weight")


def measure(schedule: str, size: dict[str, int], costs: bool) -> dict[str, Any]:
    """Trains in this process; returns costs of the stages, or a step's time."""
    import keras
    import models
    from step_times import StepTimes

    import keras_mgpu

    devices = keras_mgpu.logical_devices(2)
    keras.utils.set_random_seed(0)
    size = models.TransformerSize(**size)
    split = keras_mgpu.PipelineSplit(
        models.transformer(size),
        devices=devices,
        micro_batches=MICRO_BATCHES,
        schedule=schedule,
    )
    split.compile("sgd", "mse")
    num_steps = 1 if costs else 5
    x, y = models.sequences(BATCH * num_steps, size)
    times = StepTimes()
    split.fit(x, y, batch_size=BATCH, shuffle=False, verbose=0, callbacks=[times])
    if not costs:
        return {"step": times.median(2)}
    found, _ = split.measure(BATCH // MICRO_BATCHES)
    between = BATCH // MICRO_BATCHES * size.tokens * size.width * 4
    return {**{kind: getattr(found, kind) for kind in KINDS}, "bytes_between": between}
