"""What does one stage with one micro-batch cost beside plain Keras?

Both do the same arithmetic on the same device, so whatever differs is the wrapper's own cost. The
two take turns within one process: a machine that slows down slows down both.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Any

import row_process
from report import Table
from row_process import TWO_CORES

NUM_WARM_UP = 2  # Steps of each turn that are not counted: `fit` sets up its data.


@dataclass(frozen=True)
class Row:
    """One model.

    Attributes:
        name: What the table calls it.
        model: A key of `MODELS`.
        batch: Samples a step.
        num_steps: Steps a turn.
    """

    name: str
    model: str
    batch: int
    num_steps: int


ROWS = (
    Row("transformer, 2 blocks, batch 32", "transformer", 32, 5),
    Row("residual conv net, 32x32 images, batch 32", "conv_net", 32, 20),
    Row("MLP, 3 x 1024, batch 128", "wide_mlp", 128, 40),
    Row("MLP, 3 x 32, batch 32", "tiny_mlp", 32, 500),
)


def run(quick: bool) -> Table:
    """Measures all models, each in its own process."""
    cells = []
    for row in ROWS:
        task = {
            "model": row.model,
            "batch": row.batch,
            "num_steps": 4 if quick else row.num_steps,
            "num_rounds": 2 if quick else 5,
        }
        found = row_process.measure("overhead.benchmark", task, TWO_CORES)
        print(f"  {row.name}: {found['ratio']:.3f}", flush=True)
        cells.append(
            (
                row.name,
                f"{1000 * found['plain']:.2f} ms",
                f"{1000 * found['split']:.2f} ms",
                f"{found['ratio']:.3f}",
                f"{found['lowest']:.3f} to {found['highest']:.3f}",
            )
        )
    columns = ("", "plain Keras", "`PipelineSplit`", "throughput ratio", "of the rounds")
    return Table(columns, tuple(cells))


def measure(model: str, batch: int, num_steps: int, num_rounds: int) -> dict[str, float]:
    """Trains both sides in turns; returns seconds a step and the ratios of the rounds."""
    plain, split, x, y = _both_sides(model, batch * num_steps)
    for side in (plain, split):
        side.fit(x[:batch], y[:batch], batch_size=batch, verbose=0)  # Traces.
    rounds = []
    for number in range(num_rounds):
        # Who goes first changes, so that neither always meets the other's caches.
        sides = (plain, split) if number % 2 == 0 else (split, plain)
        taken = {id(side): _turn(side, x, y, batch) for side in sides}
        rounds.append((taken[id(plain)], taken[id(split)]))
    ratios = [of_plain / of_split for of_plain, of_split in rounds]
    return {
        "plain": statistics.median(of_plain for of_plain, _ in rounds),
        "split": statistics.median(of_split for _, of_split in rounds),
        "ratio": statistics.median(ratios),
        "lowest": min(ratios),
        "highest": max(ratios),
    }


def _turn(model: Any, x: Any, y: Any, batch: int) -> float:
    from step_times import StepTimes

    times = StepTimes()
    model.fit(x, y, batch_size=batch, shuffle=False, verbose=0, callbacks=[times])
    return times.median(NUM_WARM_UP)


def _both_sides(name: str, num_samples: int) -> tuple[Any, Any, Any, Any]:
    """The same model twice, plain and split, and data. TensorFlow is loaded only here."""
    import keras

    import keras_mgpu

    make = MODELS[name]
    model, (x, y), compiled = make(num_samples)
    plain = keras.models.clone_model(model)
    plain.compile("sgd", **compiled)
    split = keras_mgpu.PipelineSplit(model, devices=["/CPU:0"], micro_batches=1)
    split.compile("sgd", **compiled)
    return plain, split, x, y


def _transformer(num_samples: int) -> tuple[Any, Any, dict[str, Any]]:
    import models

    size = models.TransformerSize(blocks=2)
    return models.transformer(size), models.sequences(num_samples, size), {"loss": "mse"}


def _conv_net(num_samples: int) -> tuple[Any, Any, dict[str, Any]]:
    import models

    return models.residual_conv_net(), models.images(num_samples), _classification()


def _wide_mlp(num_samples: int) -> tuple[Any, Any, dict[str, Any]]:
    import models

    return models.mlp(1024), models.vectors(num_samples, 1024), _classification()


def _tiny_mlp(num_samples: int) -> tuple[Any, Any, dict[str, Any]]:
    import models

    return models.mlp(32), models.vectors(num_samples, 32), _classification()


def _classification() -> dict[str, Any]:
    import keras

    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return {"loss": loss, "metrics": ["accuracy"]}


MODELS = {
    "transformer": _transformer,
    "conv_net": _conv_net,
    "wide_mlp": _wide_mlp,
    "tiny_mlp": _tiny_mlp,
}
