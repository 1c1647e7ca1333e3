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
INTERVAL = 30.0  # Seconds between two checkpoints.


def run(quick: bool) -> Table:
    columns: list[dict[str, Any]] = []
    for name, size in (QUICK_SIZES if quick else SIZES).items():
        task = {
            "size": size,
            "rounds": QUICK_ROUNDS if quick else ROUNDS,
        }
        found = row_process.measure("checkpoints.benchmark", task, TWO_CORES)
        columns.append({"name": name, **found})
        print(f"  {name}: {found}", flush=True)
    seconds = {
        "copy to host memory": "copy",
        "DistributedCheckpoint: stall": "stall",
        "DistributedCheckpoint: all that training loses to a save": "lost",
        "ModelCheckpoint (.keras with optimizer): stall": "model_checkpoint",
        "raw write and fsync": "raw_write",
        "DistributedCheckpoint: background write": "write",
        "reading the bytes": "read",
        "restore_checkpoint": "restore",
    }
    rows = [(what, *(f"{each[key]:.3f} s" for each in columns)) for what, key in seconds.items()]
    ratios: dict[str, Callable[[dict[str, Any]], float]] = {
        "stall / copy (goal: at most 1.5)": lambda e: e["stall"] / e["copy"],
        "all that training loses / copy": lambda e: e["lost"] / e["copy"],
        "stall / ModelCheckpoint's (goal: at most 0.15)": lambda e: (
            e["stall"] / e["model_checkpoint"]
        ),
        "write speed / raw (goal: at least 0.7)": lambda e: e["raw_write"] / e["write"],
        "restore speed / reading (goal: at least 0.7)": lambda e: e["read"] / e["restore"],
        "training with a checkpoint every 30 s / without (goal: at least 0.98)": lambda e: (
            INTERVAL / (INTERVAL + e["lost"])
        ),
    }
    rows += [(what, *(f"{ratio(each):.2f}" for each in columns)) for what, ratio in ratios.items()]
    return Table(("", *(each["name"] for each in columns)), tuple(rows))


def measure(size: dict[str, int], rounds: int) -> dict[str, float]:
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
        return {name: statistics.median(values) for name, values in found.seconds.items()}
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
        from keras_mgpu.system.cluster import Workers

        model, found = self.model, {}
        found["copy"] = self._time(self._copy)
        directory = str(self.folder / "ours")
        os.makedirs(directory, exist_ok=True)
        saver, state = Saver(Store(directory), Workers()), TrainingState(model)

        def stall() -> None:
            empty: dict[str, Any] = {"callbacks": {}, "history": {}, "epochs": []}
            saver.save(state.snapshot(state.step, 0, 0, {}, empty))

        # The stall is what the callback does in the training thread. Training loses more: the next
        # step needs new buffers, since the old ones are being written, and writing needs cores.
        found["stall"] = self._time(stall)
        report = saver.wait()
        found["write"] = report.write_seconds + report.commit_seconds
        step = statistics.median(self._time(self._step) for _ in range(5))
        begin, num_steps, path = time.perf_counter(), 1, None
        stall()
        while path is None:
            self._step()
            num_steps += 1
            ended = saver.poll()
            path = None if ended is None else ended.path
        self._step()
        found["lost"] = max(time.perf_counter() - begin - num_steps * step, found["stall"])
        saver.close()

        stock = keras.callbacks.ModelCheckpoint(str(self.folder / "model.keras"))
        stock.set_model(model)
        found["model_checkpoint"] = self._time(lambda: stock.on_epoch_end(0, {}))

        os.sync()  # It leaves its bytes to the system, which would write them during the next row.
        found["raw_write"] = self._time(lambda: self._raw_write(path))
        found["read"] = self._time(lambda: self._read(path))
        found["restore"] = self._time(lambda: km.restore_checkpoint(path, model))
        shutil.rmtree(directory)
        if not is_warm_up:
            for name, value in found.items():
                self.seconds.setdefault(name, []).append(value)

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
