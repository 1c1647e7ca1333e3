"""How far a run has got, counted from the hooks that Keras calls.

Callbacks cannot just read the batch number. Keras calls the hooks once per execution, which may
train several batches (`steps_per_execution`). It begins a batch before it knows whether the data
has one more. And a custom loop may report the ends of batches only.
"""

from __future__ import annotations


class RunProgress:
    """Counts the batches of a run.

    Attributes:
        step: Batches trained so far, including those of earlier runs.
        epoch: Index of the epoch that is running, or of the next one between epochs.
        batch: Batches of that epoch trained so far.
    """

    def __init__(self, step: int = 0, epoch: int = 0, batch: int = 0) -> None:
        self.step, self.epoch, self.batch = step, epoch, batch
        self._first_of_call: int | None = None

    @property
    def is_in_call(self) -> bool:
        """Whether a batch has begun that has not ended yet."""
        return self._first_of_call is not None

    def skip_to(self, step: int) -> None:
        """Continues at a later step, for example that of a restored optimizer."""
        self.step = max(self.step, step)

    def begin_epoch(self, epoch: int, batch: int = 0) -> None:
        """Begins an epoch, of which a resumed run has trained `batch` batches already."""
        self.epoch, self.batch = epoch, batch
        self._first_of_call = None

    def begin_call(self, first: int) -> None:
        """Begins a call of the training function, with the number of its first batch."""
        self._first_of_call = first

    def end_call(self, last: int, num_batches: int | None = None) -> int:
        """Ends a call of the training function.

        Args:
            last: The number that Keras gives to its last batch. With `steps_per_execution` that
                can lie past the end of the data.
            num_batches: How many batches the data has in this epoch, if that is known.

        Returns:
            The number of batches that the call has trained.
        """
        first = last if self._first_of_call is None else self._first_of_call
        end = last + 1 if num_batches is None else min(last + 1, num_batches)
        self._first_of_call = None
        self.batch += end - first
        self.step += end - first
        return end - first

    def end_epoch(self, epoch: int) -> None:
        """Ends an epoch: the next one has no batches yet."""
        self.begin_epoch(epoch + 1)
