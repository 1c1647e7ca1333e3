"""How many samples were trained, from what Keras counts for the loss."""

from __future__ import annotations

from typing import Any

from keras_mgpu.keras_internals import loss_summed, num_samples_counted


class SampleCount:
    """Adds up Keras's counts over the moments at which Keras begins to count anew.

    A model with a `train_step` of its own, or a loop without Keras's loss, may count nothing.
    """

    def __init__(self) -> None:
        self.total = 0
        self._before: tuple[int, float] | None = None

    def begin(self, model: Any) -> None:
        """From here on training is counted."""
        self._before = sum(num_samples_counted(model)), loss_summed(model)

    def update(self, model: Any) -> None:
        """Adds what was trained since it was last asked."""
        if self._before is None:
            return
        before, self._before = self._before, (sum(num_samples_counted(model)), loss_summed(model))
        if self._before == before:
            return  # Nobody counts.
        count, count_before = self._before[0], before[0]
        is_anew = count <= count_before  # As each `train_on_batch` begins.
        self.total += count if is_anew else count - count_before

    def pause(self) -> None:
        """Until the next `begin` other samples are counted, such as those of a validation."""
        self._before = None
