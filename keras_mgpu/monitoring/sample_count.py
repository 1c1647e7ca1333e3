"""How many samples were trained, from what Keras counts for the loss."""

from __future__ import annotations

from typing import Any

from keras_mgpu.internals.keras_training import loss_summed, num_samples_counted


class SampleCount:
    """Adds up Keras's counts over the moments at which Keras begins to count anew.

    A model with a `train_step` of its own, or a loop without Keras's loss, may count nothing.
    """

    def __init__(self) -> None:
        self.total = 0
        self._counted: int | None = None
        self._loss = 0.0

    def begin(self, model: Any) -> None:
        """From here on training is counted."""
        self._counted, self._loss = sum(num_samples_counted(model)), loss_summed(model)

    def update(self, model: Any) -> None:
        """Adds what was trained since it was last asked: one step, or more."""
        if self._counted is None:
            return
        before, self._counted = self._counted, sum(num_samples_counted(model))
        if self._counted > before:
            self.total += self._counted - before
        elif self._counted < before or self._has_new_loss(model):
            self.total += self._counted  # It was counted anew, as `train_on_batch` does.

    def pause(self) -> None:
        """Until the next `begin` other samples are counted, such as those of a validation."""
        self._counted = None

    def _has_new_loss(self, model: Any) -> bool:
        """Whether anybody has trained since this was last asked."""
        before, self._loss = self._loss, loss_summed(model)
        return self._loss != before
