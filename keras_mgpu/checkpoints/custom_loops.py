"""Checkpoints for loops without callbacks."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import keras

from keras_mgpu.checkpoints.loading import Loaded, damages, load, newest_intact
from keras_mgpu.checkpoints.manifest import DamagedError, Manifest
from keras_mgpu.checkpoints.resumable import ResumableDataset
from keras_mgpu.checkpoints.retention import Retention
from keras_mgpu.checkpoints.saver import Saver
from keras_mgpu.checkpoints.store import Entry, Store, parse_path
from keras_mgpu.checkpoints.training_state import TrainingState
from keras_mgpu.system.cluster import workers_of
from keras_mgpu.system.files import check_directory, make_directory

logger = logging.getLogger("keras_mgpu")


@dataclass(frozen=True)
class RestoredCheckpoint:
    """What was restored.

    Args:
        path: Where it was.
        step: Training steps taken when it was saved.
        epoch: The epoch that was running, or is to begin.
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
    """Saves a run, and returns the path of the checkpoint once it is on disk.

    Every worker calls it, after the same step.

    Args:
        directory: Where to save: any path that `tf.io.gfile` can write.
        model: The model, built.
        step: Training steps taken. Defaults to those of the optimizer.
        epoch: The epoch that runs or, if `batch` is 0, is to begin.
        batch: Batches of that epoch that were trained.
        values: Numbers to keep with it, such as a loss.
        optimizer: Defaults to the one the model was compiled with.
        data: Made by `keras_mgpu.resumable`; its position is saved.
        keep_last: Delete all but so many of the newest afterwards. Defaults to keeping all.
        worker_timeout: Seconds that workers wait for one another's part.
    """
    directory = check_directory(directory)
    make_directory(directory)
    workers = workers_of(model.distribute_strategy)
    state = TrainingState(model, optimizer, workers)
    place = None
    if data is not None:
        place = replace(data.running, batch=batch) if batch else data.next
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
    """Restores a run; returns what was restored, or `None` if there is no intact checkpoint.

    Every file is checked before a variable is touched. Every worker calls it.

    Args:
        path: A directory of checkpoints, of which the newest intact one is taken, or the path of
            one checkpoint.
        model: The model, built; under any strategy, split or not.
        strict: Whether to refuse a checkpoint that does not have just the variables of this model
            and optimizer. Otherwise what fits is taken, and what was left is logged.
        optimizer: Defaults to the one the model was compiled with.
        data: Made by `keras_mgpu.resumable`; its next iteration begins where the run was.

    Raises:
        ValueError: If the checkpoint does not fit. Lists what is missing, unexpected or different.
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
            "The data begins anew: no position was saved, or it was one in data of another length."
        )
    found = loaded.manifest
    return RestoredCheckpoint(
        loaded.entry.path, found.step, found.epoch, found.batch, dict(found.values)
    )


def latest_checkpoint(directory: Any) -> str | None:
    """The path of the newest checkpoint whose files are all there, or `None`.

    Sizes are looked at, not every byte: that happens when it is restored.
    """
    for entry in reversed(Store(check_directory(directory)).entries()):
        if not damages(entry, full=False):
            return entry.path
    return None


def _load(path: str, accept: Any, may_set_aside: bool) -> Loaded | None:
    single: Entry | None = parse_path(path)
    if single is None:
        return newest_intact(Store(path), accept, may_set_aside)
    try:
        return load(single, accept)
    except DamagedError as error:
        raise ValueError(f"The checkpoint is damaged: {error}. Received: path={path!r}") from error
