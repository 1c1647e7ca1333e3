"""The callback that reports where a model's layers run."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

import keras

from keras_mgpu.internals.keras_training import (
    batch_size_of,
    num_samples_counted,
    refuse_twice,
    training_call,
)
from keras_mgpu.placements import tensorboard
from keras_mgpu.placements.observation import collected_graphs, explained_errors, report_of
from keras_mgpu.placements.report import FILE_NAME, PlacementReport
from keras_mgpu.placements.table import renderables
from keras_mgpu.system import files, terminal
from keras_mgpu.system.cluster import workers_of
from keras_mgpu.system.files import check_directory, make_directory


class DevicePlacementLogger(keras.callbacks.Callback):
    """Reports after the first batch which device each layer asked for and which it got.

    Devices are read from the graph that was run, with or without a strategy, split or not. The
    report also shows what each device holds, what devices send to one another, and which ops
    TensorFlow moved and why. Nothing is traced for it, and nothing happens after the first batch.

    Example:

    ```python
    model.fit(x, y, callbacks=[keras_mgpu.DevicePlacementLogger("logs")])
    ```

    Args:
        log_dir: Directory for `placement.json` and for TensorBoard, which shows a graph of the
            layers colored by device, and the table. Defaults to `None`: nothing is written.
        verbose: 1 prints the table, 0 does not. Defaults to 1.
        step: The `tf.function` of a custom training loop, from which the sizes of tensors are
            known. Not needed with `fit`.
    """

    def __init__(self, log_dir: Any = None, verbose: int = 1, step: Any = None) -> None:
        super().__init__()
        if verbose not in (0, 1):
            raise ValueError(f"`verbose` must be 0 or 1. Received: verbose={verbose!r}")
        self._log_dir = None if log_dir is None else check_directory(log_dir, "log_dir")
        self._verbose = verbose
        self._step = step
        self._batch_size: int | None = None
        self._first_of_call = self._num_before = 0
        self._collection: contextlib.ExitStack | None = None
        self._graphs: list[Any] = []
        self._reported: Any = None
        self.report: PlacementReport | None = None

    def on_train_begin(self, logs: Mapping[str, Any] | None = None) -> None:
        if self._log_dir is not None:
            make_directory(self._log_dir)
        call = training_call()
        refuse_twice(self, call.callbacks)
        self._batch_size = batch_size_of(call.epoch_iterator)
        self._stop_collecting()

    def on_train_batch_begin(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        function = self._function()
        if self.report is not None and function is self._reported:
            return
        self._first_of_call = batch
        self._num_before = num_samples_counted(self.model)[0]
        if self.model.train_function is not None and self._step is None:
            self._watch(self.model.train_function)
        else:
            self._collection = contextlib.ExitStack()
            self._graphs = self._collection.enter_context(collected_graphs(function))

    def on_train_batch_end(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        self._stop_collecting()
        function = self._function()
        if self.report is not None and function is self._reported:
            return
        num_samples = num_samples_counted(self.model)[0] - self._num_before
        num_samples //= batch - self._first_of_call + 1
        graphs, self._graphs = self._graphs, []
        report = report_of(self.model, graphs, function, num_samples or self._samples_per_replica())
        self._reported, self.report = function, report
        self._show(report)

    def on_train_end(self, logs: Mapping[str, Any] | None = None) -> None:
        self._stop_collecting()

    def _function(self) -> Any:
        return self._step if self._step is not None else self.model.train_function

    def _samples_per_replica(self) -> int | None:
        if self._batch_size is None:
            return None
        return int(-(-self._batch_size // self.model.distribute_strategy.num_replicas_in_sync))

    def _watch(self, function: Any) -> None:
        """Wraps the function that `fit` calls, for one batch, to collect its graphs."""
        model = self.model

        def run(data: Any) -> Any:
            model.train_function = function
            with collected_graphs(function) as self._graphs, explained_errors(model, function):
                return function(data)

        model.train_function = run

    def _stop_collecting(self) -> None:
        if self._collection is not None:
            self._collection.close()
            self._collection = None

    def _show(self, report: PlacementReport) -> None:
        if self._verbose:
            terminal.show(*renderables(report))
        if self._log_dir is None:
            return
        workers = workers_of(self.model.distribute_strategy)
        ending = f"_{workers.names[workers.index].replace(':', '_')}" if workers.count > 1 else ""
        name = FILE_NAME.replace(".json", f"{ending}.json")
        make_directory(self._log_dir)
        files.write_text(files.join(self._log_dir, name), report.to_json())
        tensorboard.write(report, files.join(self._log_dir, f"placement{ending}"))
