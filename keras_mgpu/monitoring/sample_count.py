"""How many samples were trained, from what Keras counts for the loss."""

from __future__ import annotations

from typing import Any

from keras_mgpu.keras_internals import num_samples_counted


class SampleCount:
    """Adds up Keras's counts over the moments at which Keras begins to count anew.

    A model with a `train_step` of its own, or a loop without Keras's loss, may count nothing.
    """

    def __init__(self) -> None:
        self.total = 0
        self._counted: int | None = None

    def begin(self, model: Any) -> None:
        """From here on training is counted."""
        self._counted = sum(num_samples_counted(model))

    def update(self, model: Any) -> None:
        """Adds what was trained since it was last asked."""
        if self._counted is None:
            return
        counted = sum(num_samples_counted(model))
        is_anew = counted < self._counted
        self.total += counted if is_anew else counted - self._counted
        self._counted = counted

    def pause(self, model: Any) -> None:
        """Until the next `begin` other samples are counted, such as those of a validation."""
        self.update(model)
        self._counted = None
