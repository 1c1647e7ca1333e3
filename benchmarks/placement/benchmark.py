"""What does looking at the placement cost?

The first step with `DevicePlacementLogger` and without, and what of it is the report: the time that
its callback takes after the step. Later steps are compared too: they should not differ.
"""

from __future__ import annotations

import contextlib
import statistics
from typing import Any

import row_process
from report import Table
from row_process import TWO_CORES_ONE_THREAD_AN_OP

NUM_ROUNDS = 2
NUM_STEPS = 12
MODELS = {
    "ResNet152, 515 layers": {"name": "ResNet152"},
    "MobileNetV2, 154 layers": {"name": "MobileNetV2"},
    "MobileNetV2, 2 stages, 4 micro-batches": {"name": "MobileNetV2", "num_devices": 2},
}


def run(quick: bool) -> Table:
    """Measures with and without in turns, each time in a process of its own."""
    rows = []
    for title, options in MODELS.items():
        found: dict[bool, list[dict[str, float]]] = {False: [], True: []}
        for _ in range(1 if quick else NUM_ROUNDS):
            for looks in (False, True):
                task = {"options": options, "looks": looks, "quick": quick}
                result = row_process.measure(
                    "placement.benchmark", task, TWO_CORES_ONE_THREAD_AN_OP
                )
                found[looks].append(result)
                print(f"  {title}, {looks}: {result}", flush=True)

        def median(looks: bool, key: str, found: dict[bool, Any] = found) -> float:
            return statistics.median(each[key] for each in found[looks])

        rows.append(
            (
                title,
                f"{median(False, 'first'):.1f} s",
                f"{median(True, 'first'):.1f} s",
                f"{1000 * median(True, 'export'):.0f} ms",
                f"{1000 * median(True, 'report'):.0f} ms",
                f"{median(True, 'later') / median(False, 'later'):.2f}",
            )
        )
    return Table(
        columns=(
            "",
            "first step without",
            "with",
            "TensorFlow hands over its graphs",
            "the rest of the report",
            "later steps, with / without",
        ),
        rows=tuple(rows),
    )


def measure(options: dict[str, Any], looks: bool, quick: bool) -> dict[str, float]:
    """Trains in this process; returns seconds. TensorFlow is loaded only here."""
    import time

    import keras
    import numpy as np

    import keras_mgpu as km
    from keras_mgpu.internals import tf_graph_collection

    devices = km.logical_devices(2)
    make = getattr(keras.applications, "MobileNetV2" if quick else options["name"])
    model = make(weights=None, input_shape=(32, 32, 3), classes=10)
    if "num_devices" in options:
        model = km.PipelineSplit(model, devices, micro_batches=4)
    model.compile("sgd", "sparse_categorical_crossentropy", jit_compile=False)
    logger = km.DevicePlacementLogger(verbose=0)
    taken = {"export": 0.0}
    collecting = tf_graph_collection.collecting

    @contextlib.contextmanager
    def timed() -> Any:
        with contextlib.ExitStack() as stack:
            yield stack.enter_context(collecting())
            start = time.perf_counter()
            stack.close()
            taken["export"] = time.perf_counter() - start

    tf_graph_collection.collecting = timed
    times: list[float] = []

    class Clock(keras.callbacks.Callback):
        """Stands in front of the logger at the beginning of a batch, and behind it at the end."""

        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            self.start = time.perf_counter()

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            times.append(time.perf_counter() - self.start)

    class Before(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.start = time.perf_counter()

    class After(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            taken.setdefault("callback", time.perf_counter() - before.start)

    before = Before()
    watched = [before, logger, After()] if looks else []
    x = np.zeros((8 * NUM_STEPS, 32, 32, 3), "float32")
    y = np.zeros(8 * NUM_STEPS, "int64")
    callbacks = [*watched, Clock()]
    model.fit(x, y, batch_size=8, verbose=0, callbacks=callbacks)
    return {
        "first": times[0],
        "later": statistics.median(times[2:]),
        "export": taken["export"],
        "report": taken.get("callback", 0.0),
    }
