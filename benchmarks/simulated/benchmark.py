"""How fast is a step on GPUs that take as long as their data sheet says?

Nothing here is measured on a GPU. TensorFlow schedules, launches and copies as it does for GPUs,
and the simulator says when each kernel and copy would have ended. That is enough to see whether
devices work while others do, and what they wait for.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import row_process
from report import Table
from row_process import TWO_CORES

HERE = Path(__file__).parent
SIMULATOR = HERE.parents[1] / "tests" / "simgpu"
GPU = "A100"
NAMES = ("transformer", "conv net", "MLP")
DEVICES = (2, 4, 8)
SCHEDULES = ("gpipe", "1f1b", "interleaved", "zero_bubble")
# What is saved of the bubble of 1F1B: two stages per device halve it, ZB-H1 leaves a third.
PROMISED = {"interleaved": 1 / 2, "zero_bubble": 2 / 3}
BLOCKS_PER_DEVICE = 2
MICRO_BATCHES_PER_DEVICE = 4
NUM_STEPS = 3

COLUMNS = (
    "",
    "step",
    "predicted / step",
    "of one device / devices",
    "of the schedule's limit",
    "of the promised gain",
    "bubble",
    "copies",
    "start, update",
    "rest",
    "host per launch",
    "wall / step",
)


def run(quick: bool) -> Table:
    """Measures every model on every number of devices, each in a process of its own."""
    rows = []
    for name in NAMES[-1:] if quick else NAMES:
        for num_devices in DEVICES[:1] if quick else DEVICES:
            task = {
                "name": name,
                "num_devices": num_devices,
                "num_steps": 1 if quick else NUM_STEPS,
            }
            found = row_process.measure("simulated.benchmark", task, TWO_CORES)
            for schedule in SCHEDULES:
                gain = _share_of_gain(schedule, found)
                cells = _cells(found["one_device"] / num_devices, found[schedule], gain)
                rows.append((f"{name}, {num_devices} devices, {schedule}", *cells))
                print("  " + ", ".join(rows[-1]), flush=True)
    return Table(COLUMNS, tuple(rows))


def _share_of_gain(schedule: str, found: dict[str, Any]) -> str:
    """How much of the bubble of 1F1B a schedule saves, beside what it is made for."""
    if schedule not in PROMISED:
        return "-"
    one_f_one_b = found["1f1b"]
    promised = PROMISED[schedule] * one_f_one_b["bubble"] * one_f_one_b["limit"]
    return f"{(one_f_one_b['seconds'] - found[schedule]['seconds']) / promised:.2f}"


def _cells(ideal: float, found: dict[str, float], gain: str) -> tuple[str, ...]:
    step, limit, predicted = found["seconds"], found["limit"], found["predicted"]
    return (
        f"{step:.2f} s",
        f"{predicted / step:.2f}",
        f"{ideal / step:.2f}",
        f"{limit / step:.2f}",
        gain,
        f"{found['bubble'] * limit / step:.1%}",
        f"{(predicted - limit) / step:.1%}",
        f"{(step - found['in_schedule']) / step:.1%}",
        f"{(found['in_schedule'] - predicted) / step:.1%}",
        f"{1000 * found['late_launch']:.1f} ms",
        f"{found['wall'] / step:.3f}",
    )


def measure(name: str, num_devices: int, num_steps: int) -> dict[str, Any]:
    """Measures one device and every schedule, in this process."""
    sys.path[:0] = [str(HERE), str(SIMULATOR)]
    import simgpu

    simgpu.load(max(DEVICES))
    import keras_mgpu

    devices = keras_mgpu.prepare_gpus()
    from small_models import MODELS

    model = MODELS[name]
    trial = Trial(model, num_devices * BLOCKS_PER_DEVICE)
    found: dict[str, Any] = {"one_device": trial.one_device(num_devices * MICRO_BATCHES_PER_DEVICE)}
    for schedule in SCHEDULES:
        found[schedule] = trial.pipeline(devices[:num_devices], schedule, num_steps)
    return found


class Trial:
    """Steps of a model of so many blocks."""

    def __init__(self, model: Any, num_blocks: int) -> None:
        import costs

        self._model = model
        self._num_blocks = num_blocks
        self._numbers = model.cost(costs.GPUS[GPU])
        cost = costs.cost_of(GPU, **self._numbers)
        copying = model.bytes_between / cost.peer_bandwidth + cost.peer_latency
        self._transfer = cost.time_scale * copying

    def one_device(self, num_micro_batches: int) -> float:
        """Seconds on one device in one stage, without start and update of the step.

        Each micro-batch adds the same, so that few are enough to tell.
        """
        two, four = (self._step_on_one_device(number) for number in (2, 4))
        return two + (num_micro_batches - 2) * (four - two) / 2

    def _step_on_one_device(self, num_micro_batches: int) -> float:
        from simulated_steps import median_step

        _, step = self._split(["/GPU:0"], num_micro_batches, "1f1b")
        with self._time():
            return median_step(step, 1).in_schedule

    def pipeline(self, devices: list[str], schedule: str, num_steps: int) -> dict[str, float]:
        from simulated_steps import late_launch, median_step

        from keras_mgpu.blueprint.timeline import replay

        num_micro_batches = len(devices) * MICRO_BATCHES_PER_DEVICE
        split, step = self._split(devices, num_micro_batches, schedule)
        with self._time():
            found = median_step(step, num_steps)
        limit = replay(split.schedule, found.costs(split.schedule))
        with_copies = replay(split.schedule, found.costs(split.schedule, self._transfer))
        return {
            "seconds": found.seconds,
            "wall": found.wall,
            "in_schedule": found.in_schedule,
            "late_launch": late_launch(found),
            "cpu": found.cpu,
            "limit": limit.makespan,
            "bubble": limit.bubble,
            "predicted": with_copies.makespan,
        }

    def _split(self, devices: list[str], num_micro_batches: int, schedule: str) -> tuple[Any, Any]:
        """A split model that has run its first steps, and a function that runs one more."""
        import keras
        import tensorflow as tf

        import keras_mgpu

        keras.utils.set_random_seed(0)
        split = keras_mgpu.PipelineSplit(
            self._model.make(self._num_blocks),
            devices=devices,
            micro_batches=num_micro_batches,
            schedule=schedule,
        )
        split.compile("sgd", "mse", jit_compile=False)
        with tf.device("/CPU:0"):
            batch = tuple(map(tf.constant, self._model.batch(num_micro_batches)))
        split.make_train_function()

        def step() -> None:
            logs = split.train_function(iter([batch]))
            float(logs["loss"])  # As `fit` does.

        for _ in range(2):
            step()
        return split, step

    @contextlib.contextmanager
    def _time(self) -> Iterator[None]:
        import simgpu

        simgpu.set_cost(GPU, **self._numbers)
        try:
            yield
        finally:
            simgpu.set_cost()
