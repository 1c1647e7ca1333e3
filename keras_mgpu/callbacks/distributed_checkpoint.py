"""The callback that saves a run so that nothing of it is lost, and goes on with it."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_mgpu.checkpoints.callback_state import Neighbours
from keras_mgpu.checkpoints.loading import Loaded, newest_intact
from keras_mgpu.checkpoints.preemption import Preempted, StopRequest
from keras_mgpu.checkpoints.resumable_dataset import Position, ResumableDataset
from keras_mgpu.checkpoints.retention import Retention, resolve_mode
from keras_mgpu.checkpoints.run_lock import RunLock
from keras_mgpu.checkpoints.save_timing import Passed, make_timing
from keras_mgpu.checkpoints.saver import Saver, SaveReport, finish_earlier_save
from keras_mgpu.checkpoints.store import Store
from keras_mgpu.checkpoints.training_state import TrainingState
from keras_mgpu.internals.keras_optimizers import steps_of
from keras_mgpu.internals.keras_training import (
    EpochLength,
    begin_at_epoch,
    build_like_fit,
    refuse_twice,
    training_call,
)
from keras_mgpu.model.split_model import unsplit
from keras_mgpu.system import files
from keras_mgpu.system.cluster import workers_of
from keras_mgpu.system.files import check_directory, make_directory

logger = logging.getLogger("keras_mgpu")


class DistributedCheckpoint(keras.callbacks.Callback):
    """Saves a run while it trains, and goes on with it when it is started again.

    It works in `fit` and in custom loops, under any strategy or none, and in every worker alike.
    Training waits only until the variables are copied to host memory; the rest happens in the
    background. An error there is raised at the next batch.

    Saved are weights, optimizer, seeds, metrics, history, the position in the data, and the state
    of the other callbacks. Data made with `keras_mgpu.resumable` goes on at the very batch, other
    data at the next epoch.

    On SIGTERM the run is saved at the end of the running batch, and the program ends with code 143.

    Example:

    ```python
    data = keras_mgpu.resumable(x, y, batch_size=32)
    model.fit(data, epochs=10, callbacks=[keras_mgpu.DistributedCheckpoint("checkpoints")])
    ```

    Args:
        directory: Where to save: any path that `tf.io.gfile` can write.
        save_freq: `"epoch"`, or a number of batches. Defaults to `"epoch"`.
        seconds: Save after so many seconds instead.
        overhead: Save as often as this share of the training time allows, such as `0.01`; with
            `seconds`, at least as often as that.
        keep_last: How many of the newest checkpoints to keep. Defaults to 3.
        keep_best: How many of the best to keep, by `monitor`; the end of every epoch is then saved.
            Defaults to 0.
        monitor: Name of a value in the logs, such as `"val_loss"`.
        mode: `"min"`, `"max"`, or `"auto"` by the name. Defaults to `"auto"`.
        keep_every: Keep one checkpoint for each so many steps, for ever.
        resume: Whether to go on from the newest intact checkpoint. Defaults to `True`.
        log_dir: Where TensorBoard finds how long saving took.
        data: The resumable data, in a custom loop; `fit`'s is found without.
        worker_timeout: Seconds that workers wait for one another's part. Defaults to 600.
    """

    _stall: float | None
    _times: dict[str, float]
    _epoch_logs: dict[str, float] | None
    _batch_logs: dict[str, float]
    _pass: Position | None
    _state: TrainingState | None

    def __init__(
        self,
        directory: Any,
        save_freq: str | int = "epoch",
        seconds: float | None = None,
        overhead: float | None = None,
        keep_last: int = 3,
        keep_best: int = 0,
        monitor: str | None = None,
        mode: str = "auto",
        keep_every: int | None = None,
        resume: bool = True,
        log_dir: Any = None,
        data: ResumableDataset | None = None,
        worker_timeout: float = 600.0,
    ) -> None:
        super().__init__()
        self.directory = check_directory(directory)
        self._timing = make_timing(save_freq, seconds, overhead)
        _check_count("keep_last", keep_last, 1)
        _check_count("keep_best", keep_best, 0)
        if keep_every is not None:
            _check_count("keep_every", keep_every, 1)
        if keep_best and monitor is None:
            raise ValueError(
                "`keep_best` needs to know what is best: give `monitor` too, such as "
                f'`monitor="val_loss"`. Received: keep_best={keep_best}, monitor=None'
            )
        self._monitor = monitor
        self._retention = Retention(keep_last, keep_best, resolve_mode(mode, monitor), keep_every)
        self._resume = resume
        self._log_dir = None if log_dir is None else str(log_dir)
        self._given_data = data
        self._worker_timeout = worker_timeout
        self._lock = RunLock(self.directory)
        self._saver: Saver | None = None
        self.initial_epoch = 0
        self.initial_batch = 0

    # What Keras calls, in the order in which it does.

    def on_train_begin(self, logs: Mapping[str, Any] | None = None) -> None:
        call = training_call()
        refuse_twice(self, call.callbacks)
        self._refuse_neighbours_here(call.callbacks)
        self._neighbours = Neighbours(each for each in call.callbacks if each is not self)
        self._asked_epoch = call.names.get("initial_epoch") or 0
        iterator = call.epoch_iterator
        self._length = None if iterator is None else EpochLength(self.model, iterator)
        data = self._given_data if self._given_data is not None else call.names.get("x")
        self._data = data if isinstance(data, ResumableDataset) else None
        self._workers = workers_of(self.model.distribute_strategy)
        self._store = Store(self.directory)
        make_directory(self.directory)
        if self._workers.is_first:
            self._lock.acquire()
        finish_earlier_save(self.directory)
        if self._workers.is_first:
            self._store.clean()
        self._saver = Saver(
            self._store, self._workers, self._retention, self._monitor, self._worker_timeout
        )
        self._writer = self._make_writer()
        self._state = None
        self._request = StopRequest(self.directory, self._workers)
        self.initial_epoch = self.initial_batch = 0
        self._begin_counting(steps_of(self.model.optimizer))
        self._loaded = None
        if self._resume and self._store.entries():
            if iterator is not None:
                build_like_fit(unsplit(self.model), iterator)
            with self._stopping_on_errors():
                self._loaded = self._load()
        self._request.listen(call.code)

    def _refuse_neighbours_here(self, callbacks: Iterable[Any]) -> None:
        others = [each for each in callbacks if isinstance(each, DistributedCheckpoint)]
        if sum(each.directory == self.directory for each in others) > 1:
            raise ValueError(
                "There are two DistributedCheckpoints for one directory. Give one of them another. "
                f"Received: directory={self.directory!r}"
            )

    def on_epoch_begin(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        self._running()
        if self._length is not None:
            self._length.restore()
        self._epoch, self._batch = epoch, 0
        if self._loaded is not None:
            self._batch = self.initial_batch
            if self._length is not None and self._batch:
                self._length.shorten(self._batch, self._loaded.manifest.values)
            self._put_back()
        else:
            self._save_if_due(epoch_ended=self._epoch_logs is not None)
        self._epoch_logs = None

    def on_train_batch_begin(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        self._running()
        self._first_of_call = batch
        if self._loaded is not None:
            # Other callbacks have had their say about the learning rate in `on_epoch_begin`, which
            # they had before this checkpoint was saved. So it is put back once more.
            if self._batch:
                self._put_back()
            self._loaded = None
        elif self._batch and not self._is_past_the_last():
            self._save_if_due()

    def on_train_batch_end(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        first = self._first_of_call
        count = (
            batch - first + 1 if self._length is None else self._length.num_trained(first, batch)
        )
        self._batch += count
        self._step += count
        self._num_unsaved += count
        self._batch_logs = _numbers(logs)
        if self._data is not None:
            self._follow_data(self._data.running, count)
        self._note(self._running().poll)

    def on_epoch_end(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        numbers = self._epoch_logs = _numbers(logs)
        self._epoch, self._batch = epoch + 1, 0
        if self._monitor is not None and self._monitor not in numbers:
            self._stop()
            raise ValueError(
                "There is no such value to monitor. The logs of an epoch have: "
                f"{', '.join(numbers) or 'nothing'}. Received: monitor={self._monitor!r}"
            )

    def on_train_end(self, logs: Mapping[str, Any] | None = None) -> None:
        self._running()
        if self._loaded is not None:
            self._put_back()
            logger.warning(
                "The run in %s is complete: there was nothing left to train. To train on, ask for "
                "more epochs; to train anew, give another directory.",
                self.directory,
            )
        elif self._num_unsaved:
            self._save()
        self._note(self._running().wait)
        self._stop()

    # Going on with a run.

    def _load(self) -> Loaded | None:
        state = self._training_state()
        loaded = newest_intact(
            self._store, accept=state.check, may_set_aside=self._workers.is_first
        )
        if loaded is None:
            return None
        state.restore(loaded)
        manifest, place = loaded.manifest, state.place(loaded)
        self.initial_epoch, self.initial_batch = manifest.epoch, manifest.batch
        if self._data is not None and place is not None:
            is_there = self._data.seek(place)
            why = "it has batches of another size, or another number of them"
        else:
            is_there = False
            why = (
                "it does not know its place. To go on at the very batch, give `fit` "
                "`keras_mgpu.resumable(x, y, batch_size=...)` or `keras_mgpu.resumable(dataset)`"
            )
        if manifest.batch and not is_there:
            self.initial_epoch, self.initial_batch = manifest.epoch + 1, 0
            logger.warning(
                "The run was saved after batch %d of epoch %d. Training goes on with epoch %d, as "
                "the data cannot go on there: %s.",
                manifest.batch,
                manifest.epoch + 1,
                manifest.epoch + 2,
                why,
            )
        self._begin_counting(manifest.step)
        if self._asked_epoch not in (0, self.initial_epoch):
            logger.warning(
                "`initial_epoch=%d` is passed over: the run in %s goes on with epoch index %d.",
                self._asked_epoch,
                self.directory,
                self.initial_epoch,
            )
        begin_at_epoch(self.model, self.initial_epoch)
        logger.info(
            "Going on from %s: epoch %d, batch %d.",
            loaded.entry.path,
            self.initial_epoch + 1,
            self.initial_batch,
        )
        return loaded

    def _put_back(self) -> None:
        """Makes everything as it was at the moment of the save that `_loaded` comes from."""
        loaded = self._loaded
        if loaded is None:
            return
        self._training_state().restore(loaded)
        if self.initial_batch:
            self._training_state().restore_metrics(loaded)
        self._neighbours.restore(loaded.state, loaded.tensors)
        if not self.initial_batch:
            self._loaded = None

    # Saving.

    def _save_if_due(self, epoch_ended: bool = False) -> None:
        if self._request.is_due(self._step):
            self._save()
            self._note(self._running().wait)
            self._request.answered()
            message = (
                f"SIGTERM: step {self._step} is saved in {self.directory} (epoch "
                f"{self._epoch + 1}, batch {self._batch}). Start again to go on from there."
            )
            logger.warning(message)
            self._stop()
            raise Preempted(message)
        now = time.monotonic()
        passed = Passed(self._num_unsaved, now - self._last_save, self._stall, epoch_ended)
        if self._timing.is_due(passed) or (epoch_ended and self._retention.best):
            self._save()

    def _save(self) -> None:
        start = time.monotonic()
        self._note(self._running().wait)
        copy_start = time.monotonic()
        arrays: dict[str, np.ndarray] = {}
        state = self._neighbours.state(arrays)
        values = (self._epoch_logs if self._batch == 0 else None) or self._batch_logs
        snapshot = self._training_state().snapshot(
            self._step, self._epoch, self._batch, values, state, self._place(), arrays
        )
        end = time.monotonic()
        self._running().save(snapshot)
        self._stall = time.monotonic() - start
        self._last_save = time.monotonic()
        self._num_unsaved = 0
        self._times = {"stall_seconds": self._stall, "copy_seconds": end - copy_start}

    def _place(self) -> Position | None:
        """Where the next batch is in the data."""
        if self._data is None:
            return None
        ended = self._batch == 0 and not (self._length is not None and self._length.is_stream)
        return self._data.next if ended or self._pass is None else self._pass

    def _is_past_the_last(self) -> bool:
        """Whether no batch is left of the epoch: `fit` begins one more if it knows no length."""
        length = None if self._data is None else self._data.num_batches
        is_stream = self._length is not None and self._length.is_stream
        return length is not None and not is_stream and self._batch >= length

    def _follow_data(self, running: Position, count: int) -> None:
        """Counts the batches that were trained of the pass over the data that is running."""
        if self._pass is None or running.number != self._pass.number:
            self._pass = running
        self._pass = replace(self._pass, batch=self._pass.batch + count)

    # Small things.

    def _begin_counting(self, step: int) -> None:
        self._step = step
        self._epoch, self._batch = self.initial_epoch, self.initial_batch
        self._first_of_call = 0
        self._num_unsaved = 0
        self._last_save = time.monotonic()
        self._stall = None
        self._times = {}
        self._epoch_logs = None
        self._batch_logs = {}
        self._pass = None

    def _training_state(self) -> TrainingState:
        """Made when it is first needed: without a strategy, `fit` makes variables in a step."""
        if self._state is None:
            self._state = TrainingState(self.model, workers=self._workers)
        return self._state

    def _running(self) -> Saver:
        if self._saver is None:
            raise RuntimeError(
                "`on_train_begin` was not called. In a custom loop, drive callbacks with "
                "`keras.callbacks.CallbackList([...], model=model)`."
            )
        return self._saver

    def _stop(self) -> None:
        """Gives back everything that was taken for the time of training."""
        if self._length is not None:
            self._length.restore()
        begin_at_epoch(self.model, None)
        self._running().close()
        self._lock.release()
        if self._writer is not None:
            self._writer.close()
        self._request.stop_listening()

    @contextlib.contextmanager
    def _stopping_on_errors(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self._stop()
            raise

    def _note(self, get_report: Any) -> None:
        """Writes to TensorBoard what a save took that has ended since."""
        with self._stopping_on_errors():
            report: SaveReport | None = get_report()
        if report is None or self._writer is None:
            return
        values = {
            **self._times,
            "write_seconds": report.write_seconds,
            "commit_seconds": report.commit_seconds,
            "bytes": report.num_bytes,
            "bytes_per_second": report.num_bytes / max(report.write_seconds, 1e-9),
            "kept": report.num_kept,
            "deleted": report.num_deleted,
        }
        with self._writer.as_default(step=report.step):
            for name, value in values.items():
                tf.summary.scalar(f"checkpoint/{name}", value)
        self._writer.flush()

    def _make_writer(self) -> Any:
        if self._log_dir is None:
            return None
        run = "checkpoints" if self._workers.count == 1 else f"checkpoints_{self._workers.index}"
        return tf.summary.create_file_writer(files.join(self._log_dir, run))


def _numbers(logs: Mapping[str, Any] | None) -> dict[str, float]:
    """The logs that are numbers."""
    found = {}
    for name, value in (logs or {}).items():
        try:
            found[name] = float(value)
        except (TypeError, ValueError):
            continue
    return found


def _check_count(name: str, value: Any, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(
            f"`{name}` must be a whole number from {least} on. Received: {name}={value!r}"
        )
