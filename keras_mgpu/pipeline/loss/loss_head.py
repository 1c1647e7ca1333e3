"""What follows the last stage: the loss of one step, one micro-batch at a time.

A loss that can be taken apart is taken of each micro-batch as it comes out of the pipeline. For
others, and for such metrics, the head waits for all of them.
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf
from keras import tree

from keras_mgpu.internals.keras_masks import get_mask, set_mask
from keras_mgpu.model.layer_calls import LayerCalls, Value
from keras_mgpu.pipeline import micro_batches
from keras_mgpu.pipeline.loss.compiled_loss import CompiledLoss, as_loss
from keras_mgpu.pipeline.loss.loss_terms import ONE, ROWS
from keras_mgpu.pipeline.micro_batches import Batch, BatchSizes, Number, as_tensor
from keras_mgpu.pipeline.stage.stage_function import LossCall


class LossHead:
    """Loss and gradients of one step, for the executor.

    Args:
        compiled: The compiled loss and metrics.
        batch: The batch of this step.
        calls: The model's layer calls.
        training: Whether gradients are wanted.
        scale: What gradients are multiplied by, for loss scaling.
    """

    def __init__(
        self,
        compiled: CompiledLoss,
        batch: Batch,
        calls: LayerCalls,
        *,
        training: bool,
        scale: Number,
    ) -> None:
        self._compiled = compiled
        self._batch = batch
        self._calls = calls
        self._training = training
        self._scale = scale
        self._divisors: list[Number] | None = None
        self._outputs: list[Value] = []
        self._num_leaves: list[int] = []
        self._gradients: list[list[tf.Tensor | None]] = []
        self._parts: list[list[tf.Tensor]] = []
        self._added: list[tf.Tensor] = []

    @property
    def couples_samples(self) -> bool:
        return self._compiled.couples_samples

    @property
    def _waits_for_all(self) -> bool:
        """Whether something needs the outputs of all micro-batches at once.

        Metrics are updated along with the parts of a loss, and so wait for a loss without parts.
        """
        return self.couples_samples or not self._compiled.metrics_can_be_split

    def take_outputs(self, micro_batch: int, outputs: list[Value]) -> None:
        batch, compiled = self._batch, self._compiled
        y_pred = self._calls.pack_outputs(outputs)
        self._num_leaves = [len(tree.flatten(output)) for output in outputs]
        if self._waits_for_all:
            self._outputs.append(y_pred)
        if compiled.couples_samples:
            return
        if self._divisors is None:
            self._divisors = compiled.divisors(batch, y_pred, self._run_layers)
        y, weight = batch.y_parts[micro_batch], batch.weight_parts[micro_batch]
        parts = compiled.take_apart(
            y,
            y_pred,
            weight,
            num_samples=batch.sizes.counts[micro_batch],
            scale=self._scale,
            divisors=self._divisors,
        )
        self._parts.append(parts.values)
        self._gradients.append(parts.gradients)

    def take_losses(
        self, micro_batch: int, losses: Sequence[tf.Tensor], calls: Sequence[LossCall]
    ) -> list[tf.Tensor]:
        sizes, gradients = self._batch.sizes, []
        for loss, added in zip(losses, calls):
            rule = self._compiled.added_rule(added, self._training)
            share = sizes.is_used(micro_batch) if rule == ONE else sizes.share(micro_batch)
            self._added.append(as_loss(loss) * as_loss(share))
            gradients.append(as_tensor(share, loss.dtype) * as_tensor(self._scale, loss.dtype))
        return gradients

    def output_gradients(self, micro_batch: int) -> list[list[tf.Tensor | None]]:
        if self.couples_samples and not self._gradients:
            self._take_whole()
        return self._by_output(self._gradients[micro_batch])

    def finish(self) -> tf.Tensor:
        """The compiled loss with what layers added; whatever metrics still wait for is done."""
        if self.couples_samples and not self._parts:
            self._take_whole()
        with tf.device(self._compiled.device):
            values, entries = self._term_values(), self._compiled.entries
            self._track_terms(values)
            if self._waits_for_all:
                self._update_metrics_with_all()
            weights = [entry.loss_weights for entry, _ in entries]
            weighted = [v if w is None else v * w for v, w in zip(values, weights)]
            return sum([*weighted, *self._added], as_loss(0.0))

    def _run_layers(self, inputs: Value) -> Value:
        return self._calls.run(inputs, self._training)

    def _track_terms(self, values: Sequence[tf.Tensor]) -> None:
        """Tracks each loss of several by itself, as Keras does."""
        entries = self._compiled.entries
        for (_, metric), value in zip(entries, values):
            if metric is not None and len(entries) == len(values):
                metric.update_state(value, sample_weight=self._batch.size_in_keras)

    def _term_values(self) -> list[tf.Tensor]:
        values = []
        for rule, *parts in zip(self._compiled.rules, *self._parts):
            is_rows = rule == ROWS and len(parts) > 1
            values.append(micro_batches.merge(parts, self._batch.sizes) if is_rows else sum(parts))
        return values

    def _all_outputs(self) -> Value:
        return merge_masked(self._outputs, self._batch.sizes)

    def _take_whole(self) -> None:
        batch = self._batch
        with tf.device(self._compiled.device):
            y_pred = self._all_outputs()
            whole = self._compiled.take_whole(batch.y, y_pred, batch.sample_weight, self._scale)
            self._parts = [whole.values]
            self._gradients = self._split_gradients(whole.gradients)

    def _split_gradients(
        self, gradients: Sequence[tf.Tensor | None]
    ) -> list[list[tf.Tensor | None]]:
        """Gradients of the whole outputs, split like the micro-batches."""
        sizes = self._batch.sizes
        parts = micro_batches.split(list(gradients), sizes)
        return [
            [None if g is None else g * as_tensor(sizes.is_used(i), g.dtype) for g in part]
            for i, part in enumerate(parts)
        ]

    def _by_output(self, gradients: Sequence[tf.Tensor | None]) -> list[list[tf.Tensor | None]]:
        """Gradients of packed leaves, sorted by the output they belong to."""
        remaining = iter(gradients)
        return [[next(remaining) for _ in range(count)] for count in self._num_leaves]

    def _update_metrics_with_all(self) -> None:
        batch = self._batch
        with tf.device(self._compiled.device):
            outputs = self._all_outputs()
            self._compiled.update_metrics_with_all(batch.y, outputs, batch.sample_weight)


def merge_masked(outputs: Sequence[Value], sizes: BatchSizes) -> Value:
    """All outputs in one batch, with their masks."""
    merged = micro_batches.merge(outputs, sizes)
    for leaf, *parts in zip(tree.flatten(merged), *map(tree.flatten, outputs)):
        masks = [None if part is None else get_mask(part) for part in parts]
        if masks[0] is not None:
            set_mask(leaf, micro_batches.merge(masks, sizes))
    return merged
