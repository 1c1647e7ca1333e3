"""How many samples were trained, from what Keras counts for the loss."""

from __future__ import annotations

from typing import Any

from keras_mgpu.internals.keras_training import loss_summed, num_samples_counted


class SampleCount:
    """Adds up Keras's counts, which Keras resets from time to time.

    A model with a custom `train_step`, or a loop without Keras's loss, may count nothing.

    Attributes:
        total: Samples trained so far.
    """

    def __init__(self) -> None:
        self.total = 0
        self._counted: int | None = None
        self._loss = 0.0

    def begin(self, model: Any) -> None:
        """Counts from here on."""
        self._counted, self._loss = sum(num_samples_counted(model)), loss_summed(model)

    def update(self, model: Any) -> None:
        """Adds what was trained since the last update: one step, or more."""
        if self._counted is None:
            return
        before, self._counted = self._counted, sum(num_samples_counted(model))
        if self._counted > before:
            self.total += self._counted - before
        elif self._counted < before or self._has_new_loss(model):
            self.total += self._counted  # Keras has reset it, as `train_on_batch` does.

    def pause(self) -> None:
        """Stops until the next `begin`: Keras counts other samples, such as in a validation."""
        self._counted = None

    def _has_new_loss(self, model: Any) -> bool:
        """Whether anything was trained since the last update."""
        before, self._loss = self._loss, loss_summed(model)
        return self._loss != before
