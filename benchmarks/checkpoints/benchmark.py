"""What does a checkpoint cost, beside the pure copy, the raw write and Keras's own callback?

All figures of a model come from one process, in rounds, so that each ratio compares what happened
side by side.
"""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import row_process
from report import Table
from row_process import TWO_CORES

# Adam keeps two slots a weight: three times the weights is what a checkpoint holds.
SIZES = {"100 MB": {"width": 2048, "layers": 2}, "1 GB": {"width": 4096, "layers": 5}}
QUICK_SIZES = {"3 MB": {"width": 256, "layers": 4}}
ROUNDS, QUICK_ROUNDS = 5, 2
TRAIN_SECONDS, QUICK_TRAIN_SECONDS = 65.0, 1.0
SAVE_SECONDS, QUICK_SAVE_SECONDS = 30.0, 0.3


def run(quick: bool) -> Table:
    columns: list[dict[str, Any]] = []
    for name, size in (QUICK_SIZES if quick else SIZES).items():
        task = {
            "size": size,
            "rounds": QUICK_ROUNDS if quick else ROUNDS,
            "train_seconds": QUICK_TRAIN_SECONDS if quick else TRAIN_SECONDS,
            "save_seconds": QUICK_SAVE_SECONDS if quick else SAVE_SECONDS,
        }
        found = row_process.measure("checkpoints.benchmark", task, TWO_CORES)
        columns.append({"name": name, **found})
        print(f"  {name}: {found}", flush=True)
    seconds = {
        "copy to host memory": "copy",
        "DistributedCheckpoint: stall": "stall",
        "DistributedCheckpoint: stall and what the next step takes longer": "stall_and_step",
        "ModelCheckpoint (.keras with optimizer): stall": "model_checkpoint",
        "raw write and fsync": "raw_write",
        "DistributedCheckpoint: background write": "write",
        "reading the bytes": "read",
        "restore_checkpoint": "restore",
    }
    rows = [(what, *(f"{each[key]:.3f} s" for each in columns)) for what, key in seconds.items()]
    ratios: dict[str, Callable[[dict[str, Any]], float]] = {
        "stall / copy (goal: at most 1.5)": lambda e: e["stall"] / e["copy"],
        "the same with the next step": lambda e: e["stall_and_step"] / e["copy"],
        "stall / ModelCheckpoint's (goal: at most 0.15)": lambda e: (
            e["stall"] / e["model_checkpoint"]
        ),
        "write speed / raw (goal: at least 0.7)": lambda e: e["raw_write"] / e["write"],
        "restore speed / reading (goal: at least 0.7)": lambda e: e["read"] / e["restore"],
        "training with a checkpoint every 30 s / without (goal: at least 0.98)": lambda e: e[
            "throughput"
        ],
    }
    rows += [(what, *(f"{ratio(each):.2f}" for each in columns)) for what, ratio in ratios.items()]
    return Table(("", *(each["name"] for each in columns)), tuple(rows))


def measure(
    size: dict[str, int], rounds: int, train_seconds: float, save_seconds: float
) -> dict[str, float]:
    """Measures everything about one model. Loads TensorFlow only here."""
    import keras
    import numpy as np

    keras.utils.set_random_seed(0)
    width = size["width"]
    model = keras.Sequential(
        [keras.Input((width,)), *(keras.layers.Dense(width) for _ in range(size["layers"]))]
    )
    model.compile("adam", "mse")
    x = np.random.default_rng(0).standard_normal((64, width), dtype="float32")
    folder = Path(tempfile.mkdtemp(prefix="checkpoint-benchmark-"))
    try:
        found = _Measured(model, x, folder)
        for number in range(rounds + 1):
            found.round(is_warm_up=number == 0)
        medians = {name: statistics.median(values) for name, values in found.seconds.items()}
        return {**medians, "throughput": found.throughput(train_seconds, save_seconds)}
    finally:
        shutil.rmtree(folder)


class _Measured:
    """Rounds of everything, one after another, on one model."""

    def __init__(self, model: Any, x: Any, folder: Path) -> None:
        self.model, self.x, self.folder = model, x, folder
        self.seconds: dict[str, list[float]] = {}
        self._step()

    def round(self, is_warm_up: bool) -> None:
        """Measures each thing once. The first round lets memory and files come into being."""
        import keras

        import keras_mgpu as km
        from keras_mgpu.checkpoints.saver import Saver
        from keras_mgpu.checkpoints.store import Store
        from keras_mgpu.checkpoints.training_state import TrainingState
        from keras_mgpu.checkpoints.workers import Workers

        model, found = self.model, {}
        found["copy"] = self._time(self._copy)
        steps = statistics.median(self._time(self._step) for _ in range(3))

        directory = str(self.folder / "ours")
        os.makedirs(directory, exist_ok=True)
        saver, state = Saver(Store(directory), Workers()), TrainingState(model)

        def stall() -> None:
            empty: dict[str, Any] = {"callbacks": {}, "history": {}, "epochs": []}
            saver.save(state.snapshot(state.step, 0, 0, {}, empty))

        # The stall is what the callback does in the training thread; the step after it has to
        # give each variable a buffer of its own, since the old one is being written.
        found["stall"] = self._time(stall)
        report = saver.wait()
        found["write"] = report.write_seconds + report.commit_seconds
        begin = time.perf_counter()
        stall()
        self._step()
        both = time.perf_counter() - begin
        found["stall_and_step"] = max(both - steps, found["stall"])
        path = saver.wait().path
        saver.close()

        stock = keras.callbacks.ModelCheckpoint(str(self.folder / "model.keras"))
        stock.set_model(model)
        found["model_checkpoint"] = self._time(lambda: stock.on_epoch_end(0, {}))

        found["raw_write"] = self._time(lambda: self._raw_write(path))
        found["read"] = self._time(lambda: self._read(path))
        found["restore"] = self._time(lambda: km.restore_checkpoint(path, model))
        shutil.rmtree(directory)
        if not is_warm_up:
            for name, value in found.items():
                self.seconds.setdefault(name, []).append(value)

    def throughput(self, train_seconds: float, save_seconds: float) -> float:
        """Steps a second with checkpoints divided by those without: the median of two pairs."""
        import keras_mgpu as km

        ratios = []
        for number in range(2):
            directory = self.folder / f"throughput-{number}"
            without = self._steps_a_second(train_seconds, None)
            checkpoint = km.DistributedCheckpoint(directory, seconds=save_seconds)
            ratios.append(self._steps_a_second(train_seconds, checkpoint) / without)
            shutil.rmtree(directory)
        return statistics.median(ratios)

    def _steps_a_second(self, seconds: float, checkpoint: Any) -> float:
        """Of steady training: what `fit` does at its beginning and end is left out."""
        import keras

        class Clock(keras.callbacks.Callback):
            begin = end = count = 0

            def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
                now = time.perf_counter()
                self.begin = self.begin or now
                self.end, self.count = now, self.count + 1
                if now - self.begin > seconds:
                    self.model.stop_training = True

        clock = Clock()
        callbacks = [clock] if checkpoint is None else [checkpoint, clock]
        import tensorflow as tf

        data = tf.data.Dataset.from_tensors((self.x, self.x)).repeat()
        self.model.fit(data, steps_per_epoch=10**9, callbacks=callbacks, verbose=0, shuffle=False)
        return (clock.count - 1) / (clock.end - clock.begin)

    def _step(self) -> None:
        self.model.train_on_batch(self.x, self.x)

    def _copy(self) -> None:
        import numpy as np

        variables = [*self.model.variables, *self.model.optimizer.variables]
        self._copies = [np.array(variable.numpy()) for variable in variables]
        del self._copies

    def _raw_write(self, path: str) -> None:
        """As many bytes as the checkpoint has, from memory, through the operating system alone."""
        num_bytes = sum(file.stat().st_size for file in Path(path).iterdir())
        block = memoryview(bytearray(os.urandom(1 << 20)) * 64)
        raw = self.folder / "raw"
        with open(raw, "wb", buffering=0) as file:
            while num_bytes > 0:
                num_bytes -= file.write(block[: min(len(block), num_bytes)])
            os.fsync(file.fileno())
        raw.unlink()

    def _read(self, path: str) -> None:
        """All files into memory of their own, as they must be to be used."""
        import numpy as np

        self._bytes = [np.fromfile(file, np.uint8) for file in Path(path).iterdir()]
        del self._bytes

    @staticmethod
    def _time(call: Callable[[], Any]) -> float:
        begin = time.perf_counter()
        call()
        return time.perf_counter() - begin
