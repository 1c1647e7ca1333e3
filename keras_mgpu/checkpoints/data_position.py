"""Where a run is in its data.

`fit` reads ahead, so the data does not know which of its batches were trained. They are counted
here.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from keras_mgpu.checkpoints.resumable_dataset import Position, ResumableDataset

NOT_RESUMABLE = (
    "it does not know its position. To continue at the exact batch, pass `fit` "
    "`keras_mgpu.resumable(x, y, batch_size=...)` or `keras_mgpu.resumable(dataset)`"
)
OTHER_BATCHES = "it has batches of another size, or another number of them"


class DataPosition:
    """Counts the batches that were trained of each pass over the data.

    Args:
        data: What is trained on. Only data made with `resumable` has positions.
        is_stream: Whether epochs are pieces of one long pass (`steps_per_epoch`).
    """

    def __init__(self, data: Any, is_stream: bool = False) -> None:
        self._data = data if isinstance(data, ResumableDataset) else None
        self._is_stream = is_stream
        self._pass: Position | None = None

    def advance(self, num_batches: int) -> None:
        """Counts batches that were trained."""
        if self._data is None:
            return
        if self._pass is None or self._pass.number != self._data.running.number:
            self._pass = self._data.running
        self._pass = replace(self._pass, batch=self._pass.batch + num_batches)

    def next(self, batch: int) -> Position | None:
        """Where the next batch is, if `batch` batches of the epoch are trained."""
        if self._data is None:
            return None
        is_new_pass = batch == 0 and not self._is_stream
        return self._data.next if is_new_pass or self._pass is None else self._pass

    def is_past_the_last(self, batch: int) -> bool:
        """Whether an epoch has no more than `batch` batches.

        `fit` begins one batch too many if it does not know the number of batches.
        """
        length = None if self._data is None else self._data.num_batches
        return length is not None and not self._is_stream and batch >= length

    def seek(self, place: Position | None) -> str | None:
        """Lets the data continue at a place. Returns why it cannot, or `None` if it can."""
        if self._data is None or place is None:
            return NOT_RESUMABLE
        return None if self._data.seek(place) else OTHER_BATCHES
