"""Functions that save and restore checkpoints in training loops without callbacks."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import keras

from keras_mgpu.checkpoints.damage import damages
from keras_mgpu.checkpoints.loading import Loaded, load, newest_intact
from keras_mgpu.checkpoints.manifest import DamagedError, Manifest
from keras_mgpu.checkpoints.resumable_dataset import Position, ResumableDataset
from keras_mgpu.checkpoints.retention import Retention
from keras_mgpu.checkpoints.saver import Saver
from keras_mgpu.checkpoints.store import Entry, Store, parse_path
from keras_mgpu.checkpoints.training_state import TrainingState
from keras_mgpu.system.cluster import workers_of
from keras_mgpu.system.files import check_directory, make_directory

logger = logging.getLogger("keras_mgpu")


@dataclass(frozen=True)
class RestoredCheckpoint:
    """Describes the checkpoint that was restored.

    Args:
        path: Path of the checkpoint.
        step: Training steps taken when it was saved.
        epoch: The epoch that was running or, if `batch` is 0, the next one.
        batch: Batches of that epoch that were trained.
        values: The values saved with it.
    """

    path: str
    step: int
    epoch: int
    batch: int
    values: Mapping[str, float]


def save_checkpoint(
    directory: Any,
    model: keras.Model,
    *,
    step: int | None = None,
    epoch: int = 0,
    batch: int = 0,
    values: Mapping[str, float] | None = None,
    optimizer: Any = None,
    data: ResumableDataset | None = None,
    keep_last: int | None = None,
    worker_timeout: float = 600.0,
) -> str:
    """Saves a training run, and returns when the checkpoint is on disk.

    With several workers, all of them must call it after the same step.

    Args:
        directory: Where to save: any path that `tf.io.gfile` can write.
        model: The model. It must be built.
        step: Training steps taken. Defaults to the optimizer's iterations.
        epoch: The running epoch or, if `batch` is 0, the next one.
        batch: Batches of that epoch that were trained.
        values: Numbers to save with it, such as a loss.
        optimizer: The optimizer. Defaults to the one the model was compiled with.
        data: Data made by `keras_mgpu.resumable`, whose position is saved.
        keep_last: Number of newest checkpoints to keep. Defaults to `None`, which keeps all.
        worker_timeout: Seconds that workers wait for one another. Defaults to 600.

    Returns:
        The path of the checkpoint.
    """
    directory = check_directory(directory)
    make_directory(directory)
    workers = workers_of(model.distribute_strategy)
    state = TrainingState(model, optimizer, workers)
    place = None if data is None else _position(data, batch)
    snapshot = state.snapshot(
        state.step if step is None else step,
        epoch,
        batch,
        values or {},
        {"callbacks": {}, "history": {}, "epochs": []},
        place,
    )
    retention = None if keep_last is None else Retention(last=keep_last)
    saver = Saver(Store(directory), workers, retention, timeout=worker_timeout)
    try:
        saver.save(snapshot)
        report = saver.wait()
    finally:
        saver.close()
    return report.path if report is not None else ""


def restore_checkpoint(
    path: Any,
    model: keras.Model,
    *,
    strict: bool = True,
    optimizer: Any = None,
    data: ResumableDataset | None = None,
) -> RestoredCheckpoint | None:
    """Restores a training run.

    Every file is checked before any variable is changed. With several workers, all of them must
    call it.

    Args:
        path: The path of one checkpoint, or a directory of checkpoints, of which the newest
            intact one is restored.
        model: The model. It must be built. It can be under any strategy, split or not.
        strict: Whether the checkpoint must have exactly the variables of the model and its
            optimizer. If `False`, what fits is restored, and the rest is logged. Defaults to
            `True`.
        optimizer: The optimizer. Defaults to the one the model was compiled with.
        data: Data made by `keras_mgpu.resumable`. Its next iteration begins at the saved
            position.

    Returns:
        A description of the checkpoint, or `None` if there is no intact one.

    Raises:
        ValueError: If the checkpoint does not match. Lists every difference.
    """
    workers = workers_of(model.distribute_strategy)
    state = TrainingState(model, optimizer, workers)

    def accept(manifest: Manifest) -> None:
        state.check(manifest, strict)

    loaded = _load(check_directory(path), accept, workers.is_first)
    if loaded is None:
        return None
    state.restore(loaded)
    state.restore_metrics(loaded)
    place = state.place(loaded)
    if data is not None and (place is None or not data.seek(place)):
        logger.warning(
            "The data starts from the beginning: the checkpoint has no position, or one in data "
            "of another length."
        )
    found = loaded.manifest
    return RestoredCheckpoint(
        loaded.entry.path, found.step, found.epoch, found.batch, dict(found.values)
    )


def latest_checkpoint(directory: Any) -> str | None:
    """Returns the path of the newest complete checkpoint, or `None`.

    Only the sizes of files are checked. Their content is checked when it is restored.

    Args:
        directory: A directory of checkpoints.
    """
    for entry in reversed(Store(check_directory(directory)).entries()):
        if not damages(entry, full=False):
            return entry.path
    return None


def _position(data: ResumableDataset, batch: int) -> Position:
    return replace(data.running, batch=batch) if batch else data.next


def _load(path: str, accept: Any, may_set_aside: bool) -> Loaded | None:
    single: Entry | None = parse_path(path)
    if single is None:
        return newest_intact(Store(path), accept, may_set_aside)
    try:
        return load(single, accept)
    except DamagedError as error:
        raise ValueError(f"The checkpoint is damaged: {error}. Received: path={path!r}") from error
