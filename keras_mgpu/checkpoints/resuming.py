"""Where a run continues: at the batch it was saved after, or at the next epoch."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from keras_mgpu.checkpoints.data_position import DataPosition
from keras_mgpu.checkpoints.loading import Loaded, newest_intact
from keras_mgpu.checkpoints.store import Store
from keras_mgpu.checkpoints.training_state import TrainingState

logger = logging.getLogger("keras_mgpu")


@dataclass(frozen=True)
class ResumePoint:
    """Where a run continues.

    Args:
        loaded: The checkpoint.
        epoch: Index of the epoch to continue with.
        batch: Batches of that epoch that are trained already.
    """

    loaded: Loaded
    epoch: int
    batch: int


def resume(
    store: Store, state: TrainingState, position: DataPosition, may_set_aside: bool
) -> ResumePoint | None:
    """Restores the newest intact checkpoint.

    Args:
        store: Where the checkpoints are.
        state: What to restore.
        position: The data, which continues where it was if it can.
        may_set_aside: Whether to set aside checkpoints that are damaged.

    Returns:
        `None` if there is no checkpoint.
    """
    loaded = newest_intact(store, accept=state.check, may_set_aside=may_set_aside)
    if loaded is None:
        return None
    state.restore(loaded)
    epoch, batch = loaded.manifest.epoch, loaded.manifest.batch
    problem = position.seek(state.place(loaded))
    if batch and problem:
        logger.warning(
            "The run was saved after batch %d of epoch %d, but its data cannot continue there: %s. "
            "Training continues with epoch %d.",
            batch,
            epoch + 1,
            problem,
            epoch + 2,
        )
        epoch, batch = epoch + 1, 0
    logger.info("Resuming from %s: epoch %d, batch %d.", loaded.entry.path, epoch + 1, batch)
    return ResumePoint(loaded, epoch, batch)
