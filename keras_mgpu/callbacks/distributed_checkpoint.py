"""The callback that saves a run while it trains, and resumes it."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

import keras
import numpy as np

from keras_mgpu.callbacks.run_progress import RunProgress
from keras_mgpu.checkpoints.callback_state import Neighbours
from keras_mgpu.checkpoints.data_position import DataPosition
from keras_mgpu.checkpoints.parts import Snapshot
from keras_mgpu.checkpoints.resumable_dataset import ResumableDataset
from keras_mgpu.checkpoints.resuming import ResumePoint, resume
from keras_mgpu.checkpoints.retention import make_retention
from keras_mgpu.checkpoints.run_lock import RunLock
from keras_mgpu.checkpoints.save_session import SaveSession, SaveSettings
from keras_mgpu.checkpoints.save_timing import make_timing
from keras_mgpu.checkpoints.training_state import TrainingState
from keras_mgpu.internals.keras_optimizers import steps_of
from keras_mgpu.internals.keras_training import (
    EpochLength,
    TrainingCall,
    begin_at_epoch,
    build_like_fit,
    refuse_twice,
    training_call,
)
from keras_mgpu.model.split_model import unsplit
from keras_mgpu.system.cluster import workers_of
from keras_mgpu.system.files import check_directory

logger = logging.getLogger("keras_mgpu")


class DistributedCheckpoint(keras.callbacks.Callback):
    """Saves a run while it trains, and resumes it when it is started again.

    It works in `fit` and in custom loops, with or without a strategy, and on every worker.
    Training waits only until the variables are copied to host memory. The rest happens in the
    background, and an error there is raised at the next batch.

    A checkpoint holds weights, optimizer, seeds, metrics, history, the position in the data, and
    the state of the other callbacks. Data made with `keras_mgpu.resumable` continues at the exact
    batch, other data at the next epoch.

    On SIGTERM the run is saved at the end of the current batch, and the program exits with code
    143.

    Example:

    ```python
    data = keras_mgpu.resumable(x, y, batch_size=32)
    model.fit(data, epochs=10, callbacks=[keras_mgpu.DistributedCheckpoint("checkpoints")])
    ```

    Args:
        directory: Where to save: any path that `tf.io.gfile` can write to.
        save_freq: `"epoch"`, or a number of batches. Defaults to `"epoch"`.
        seconds: Save every so many seconds instead.
        overhead: Save as often as this share of the training time allows, such as `0.01`; with
            `seconds`, at least that often.
        keep_last: How many of the newest checkpoints to keep. Defaults to 3.
        keep_best: How many of the best checkpoints to keep, according to `monitor`. Every epoch is
            then saved. Defaults to 0.
        monitor: Name of a value in the logs, such as `"val_loss"`.
        mode: `"min"`, `"max"`, or `"auto"` to infer it from the name. Defaults to `"auto"`.
        keep_every: Keep one checkpoint per this many steps forever.
        resume: Whether to continue from the newest intact checkpoint. Defaults to `True`.
        log_dir: Where to log for TensorBoard how long saving takes.
        data: The resumable data, in a custom loop. In `fit` it is found automatically.
        worker_timeout: Seconds that workers wait for each other when they save. Defaults to 600.
    """

    _neighbours: Neighbours
    _length: EpochLength
    _position: DataPosition
    _progress: RunProgress
    _epoch_logs: dict[str, float] | None
    _batch_logs: dict[str, float]
    _state: TrainingState | None
    _resumed: ResumePoint | None  # Until everything is as it was saved.

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
        self._settings = SaveSettings(
            directory=self.directory,
            timing=make_timing(save_freq, seconds, overhead),
            retention=make_retention(keep_last, keep_best, monitor, mode, keep_every),
            monitor=monitor,
            log_dir=None if log_dir is None else str(log_dir),
            worker_timeout=worker_timeout,
        )
        self._resume = resume
        self._given_data = data
        self._lock = RunLock(self.directory)
        self._session: SaveSession | None = None
        self.initial_epoch = 0
        self.initial_batch = 0

    # What Keras calls, in this order.

    def on_train_begin(self, logs: Mapping[str, Any] | None = None) -> None:
        call = training_call()
        refuse_twice(self, call.callbacks)
        self._refuse_same_directory(call.callbacks)
        self._neighbours = Neighbours(each for each in call.callbacks if each is not self)
        self._length = EpochLength(self.model, call.epoch_iterator)
        data = self._given_data if self._given_data is not None else call.names.get("x")
        self._position = DataPosition(data, self._length.is_stream)
        workers = workers_of(self.model.distribute_strategy)
        self._session = session = SaveSession(self._settings, self._lock, workers)
        session.on_close(lambda: begin_at_epoch(self.model, None))
        session.on_close(self._length.restore)
        self._epoch_logs, self._batch_logs = None, {}
        self._state = self._resumed = None
        self._start_at(steps_of(self.model.optimizer))
        if self._resume and session.store.entries():
            with session.closed_on_error():
                self._load(session, call)
        session.listen(call.code)

    def on_epoch_begin(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        self._running()
        self._length.restore()
        if self._resumed is not None:
            self._progress.begin_epoch(epoch, self.initial_batch)
            if self.initial_batch:
                self._length.shorten(self.initial_batch, self._resumed.loaded.manifest.values)
            self._put_back(self._resumed)
            if not self.initial_batch:
                self._resumed = None
        else:
            self._progress.begin_epoch(epoch)
            self._save_if_due(epoch_ended=self._epoch_logs is not None)
        self._epoch_logs = None

    def on_train_batch_begin(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        self._running()
        self._progress.begin_call(batch)
        num_trained = self._progress.batch
        if self._resumed is not None:
            # In `on_epoch_begin` other callbacks have set the learning rate, as they had before
            # this checkpoint was saved. So it is put back once more.
            if self.initial_batch:
                self._put_back(self._resumed)
            self._resumed = None
        elif num_trained and not self._position.is_past_the_last(num_trained):
            self._save_if_due()

    def on_train_batch_end(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        session = self._running()
        num_trained = self._progress.end_call(batch, self._length.num_batches)
        self._position.advance(num_trained)
        self._batch_logs = _numbers(logs)
        session.poll()

    def on_epoch_end(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        self._epoch_logs = _numbers(logs)
        self._progress.end_epoch(epoch)
        monitor = self._settings.monitor
        if monitor is not None and monitor not in self._epoch_logs:
            self._running().close()
            raise ValueError(
                "`monitor` must be one of the values that an epoch logs: "
                f"{', '.join(self._epoch_logs) or 'none'}. Received: monitor={monitor!r}"
            )

    def on_train_end(self, logs: Mapping[str, Any] | None = None) -> None:
        session = self._running()
        if self._resumed is not None:
            self._put_back(self._resumed)
            logger.warning(
                "The run in %s is complete, so nothing was trained. To train longer, increase "
                "`epochs`; to start over, use another directory.",
                self.directory,
            )
        elif session.has_unsaved(self._progress.step):
            self._save()
        session.wait()
        session.close()

    # Resuming.

    def _load(self, session: SaveSession, call: TrainingCall) -> None:
        if call.epoch_iterator is not None:
            build_like_fit(unsplit(self.model), call.epoch_iterator)
        state, is_first = self._training_state(), session.workers.is_first
        resumed = resume(session.store, state, self._position, may_set_aside=is_first)
        if resumed is None:
            return
        asked_epoch = call.names.get("initial_epoch") or 0
        if asked_epoch not in (0, resumed.epoch):
            logger.warning(
                "`initial_epoch=%d` is ignored: the run in %s continues with `initial_epoch=%d`.",
                asked_epoch,
                self.directory,
                resumed.epoch,
            )
        begin_at_epoch(self.model, resumed.epoch)
        self._start_at(resumed.loaded.manifest.step, resumed.epoch, resumed.batch)
        self._resumed = resumed

    def _put_back(self, resumed: ResumePoint) -> None:
        """Makes everything as it was when the checkpoint was saved."""
        loaded = resumed.loaded
        self._training_state().restore(loaded)
        if resumed.batch:
            self._training_state().restore_metrics(loaded)
        self._neighbours.restore(loaded.state, loaded.tensors)

    # Saving.

    def _save_if_due(self, epoch_ended: bool = False) -> None:
        session, progress = self._running(), self._progress
        if session.is_asked_to_stop(progress.step):
            self._save()
            session.stop(
                f"SIGTERM: step {progress.step} was saved in {self.directory} (epoch "
                f"{progress.epoch + 1}, batch {progress.batch}). Start the program again to resume."
            )
        if session.is_due(progress.step, epoch_ended):
            self._save()

    def _save(self) -> None:
        self._running().save(self._snapshot)

    def _snapshot(self) -> Snapshot:
        progress, arrays = self._progress, dict[str, np.ndarray]()
        epoch_logs = self._epoch_logs if progress.batch == 0 else None
        return self._training_state().snapshot(
            progress.step,
            progress.epoch,
            progress.batch,
            values=epoch_logs or self._batch_logs,
            state=self._neighbours.state(arrays),
            place=self._position.next(progress.batch),
            arrays=arrays,
        )

    def _start_at(self, step: int, epoch: int = 0, batch: int = 0) -> None:
        self.initial_epoch, self.initial_batch = epoch, batch
        self._progress = RunProgress(step, epoch, batch)
        self._running().start(step)

    def _training_state(self) -> TrainingState:
        """Made when it is first needed: without a strategy, `fit` makes variables in a step."""
        if self._state is None:
            self._state = TrainingState(self.model, workers=self._running().workers)
        return self._state

    def _running(self) -> SaveSession:
        if self._session is None:
            raise RuntimeError(
                "`on_train_begin` was not called. In a custom loop, call the callbacks through "
                "`keras.callbacks.CallbackList([...], model=model)`."
            )
        return self._session

    def _refuse_same_directory(self, callbacks: Iterable[Any]) -> None:
        others = [each for each in callbacks if isinstance(each, DistributedCheckpoint)]
        if sum(each.directory == self.directory for each in others) > 1:
            raise ValueError(
                "Two DistributedCheckpoint callbacks cannot save to the same directory. "
                f"Received: directory={self.directory!r}"
            )


def _numbers(logs: Mapping[str, Any] | None) -> dict[str, float]:
    """The logs that are numbers."""
    found = {}
    for name, value in (logs or {}).items():
        try:
            found[name] = float(value)
        except (TypeError, ValueError):
            continue
    return found
