"""The callback that tells where a model's layers run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras

from keras_mgpu import files, terminal
from keras_mgpu.directory import check_directory, make_directory
from keras_mgpu.keras_internals import num_samples_counted
from keras_mgpu.placements import executed_graph, tensorboard
from keras_mgpu.placements.observing import explaining, report_of
from keras_mgpu.placements.report import FILE_NAME, VARIABLES, PlacementReport
from keras_mgpu.placements.table import renderables
from keras_mgpu.workers import workers_of


class DevicePlacementLogger(keras.callbacks.Callback):
    """Tells once, after the first batch, which device each layer asked for and which it got.

    The devices are those of the graph that was run, under any strategy, split or not. It also
    tells what each device holds, what crosses from device to device, and which ops TensorFlow
    moved and why. Nothing is traced for it, and nothing is done after the first batch.

    Example:

    ```python
    model.fit(x, y, callbacks=[keras_mgpu.DevicePlacementLogger("logs")])
    ```

    Args:
        log_dir: Where to write `placement.json`, and for TensorBoard a graph of the layers
            coloured by device, and the table as text. Defaults to nowhere.
        verbose: 1 prints the table, 0 does not. Defaults to 1.
        step: The `tf.function` of a custom loop. It tells how many bytes cross between devices;
            `fit`'s is found without.
    """

    def __init__(self, log_dir: Any = None, verbose: int = 1, step: Any = None) -> None:
        super().__init__()
        if verbose not in (0, 1):
            raise ValueError(f"`verbose` must be 0 or 1. Received: verbose={verbose!r}")
        self._log_dir = None if log_dir is None else check_directory(log_dir, "log_dir")
        self._verbose = verbose
        self._step = step
        self._is_collecting = False
        self._num_tries = 0
        self._num_before = 0
        self._reported: Any = None
        self.report: PlacementReport | None = None

    def on_train_begin(self, logs: Mapping[str, Any] | None = None) -> None:
        if self._log_dir is not None:
            make_directory(self._log_dir)
        self._num_tries = 0

    def on_train_batch_begin(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        function = self._function()
        if self._num_tries > 1 or (function is not None and function is self._reported):
            return
        self._num_tries += 1
        self._is_collecting = True
        self._num_before = num_samples_counted(self.model)[0]
        executed_graph.start_collecting()
        if self._step is None and function is not None:
            self._explain_errors(function)

    def on_train_batch_end(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        if not self._is_collecting:
            return
        self._is_collecting = False
        function = self._function()
        num_samples = num_samples_counted(self.model)[0] - self._num_before
        report = report_of(self.model, function, max(1, num_samples))
        may_be_seen = report.source == VARIABLES and not self.model.run_eagerly
        if may_be_seen and self._num_tries == 1:
            # The function was run before this callback came: it is placed anew in the next batch.
            executed_graph.forget_functions()
            return
        self._num_tries = 2
        self._reported, self.report = function, report
        self._show(report)

    def on_train_end(self, logs: Mapping[str, Any] | None = None) -> None:
        if self._is_collecting:
            self._is_collecting = False
            executed_graph.stop_collecting()

    def _function(self) -> Any:
        return self._step if self._step is not None else self.model.train_function

    def _explain_errors(self, function: Any) -> None:
        """For this one batch, `fit` runs its function in a frame that explains refusals."""
        model = self.model

        def run(data: Any) -> Any:
            model.train_function = function
            with explaining(model, function):
                return function(data)

        model.train_function = run

    def _show(self, report: PlacementReport) -> None:
        if self._verbose:
            terminal.show(*renderables(report))
        if self._log_dir is None:
            return
        workers = workers_of(self.model.distribute_strategy)
        ending = f"_{workers.names[workers.index].replace(':', '_')}" if workers.count > 1 else ""
        name = FILE_NAME.replace(".json", f"{ending}.json")
        files.write_text(files.join(self._log_dir, name), report.to_json())
        tensorboard.write(report, files.join(self._log_dir, f"placement{ending}"))
