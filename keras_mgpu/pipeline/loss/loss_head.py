"""What stands behind the last stage: the loss of one step, a micro-batch at a time.

A loss that can be taken apart is taken of each micro-batch as it comes out of the pipeline. For
others, and for such metrics, the head waits for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from keras import tree

from keras_mgpu.internals.keras_variables import get_mask, set_mask
from keras_mgpu.model.layer_calls import LayerCall, Value
from keras_mgpu.pipeline import micro_batches
from keras_mgpu.pipeline.loss.compiled_loss import CompiledLoss, as_loss
from keras_mgpu.pipeline.loss.loss_terms import ONE, ROWS
from keras_mgpu.pipeline.micro_batches import Batch, Sizes


class LossHead:
    """Loss and gradients of one step, for the executor.

    Args:
        compiled: The compiled loss and metrics.
        batch: The batch of this step.
        training: Whether gradients are wanted.
        scale: What gradients are multiplied by, for loss scaling.
        pack_outputs: Turns output values into what the model returns.
        forward: Runs the model's layers on inputs without regard to stages.
    """

    def __init__(
        self,
        compiled: CompiledLoss,
        batch: Batch,
        training: bool,
        scale: tf.Tensor,
        pack_outputs: Callable[[Sequence[Value]], Value],
        forward: Callable[[Value], Value],
    ) -> None:
        self._compiled = compiled
        self._batch = batch
        self._training = training
        self._scale = scale
        self._pack_outputs = pack_outputs
        self._forward = forward
        self._divisors: list[tf.Tensor] | None = None
        self._outputs: list[Value] = []
        self._num_leaves: list[int] = []
        self._gradients: list[Any] = []
        self._parts: list[list[tf.Tensor]] = []
        self._added: list[tf.Tensor] = []

    @property
    def couples_samples(self) -> bool:
        return self._compiled.couples_samples

    def take_outputs(self, micro_batch: int, outputs: list[Value]) -> None:
        batch, compiled = self._batch, self._compiled
        y_pred = self._pack_outputs(outputs)
        self._num_leaves = [len(tree.flatten(output)) for output in outputs]
        if compiled.couples_samples or not compiled.metrics_can_be_split:
            self._outputs.append(y_pred)
        if compiled.couples_samples:
            return
        if self._divisors is None:
            divisors = compiled.divisors(batch, y_pred, self._forward)
            self._divisors = list(divisors)
        y, weight = batch.y_parts[micro_batch], batch.weight_parts[micro_batch]
        (parts, gradients), _ = compiled.take_apart(
            [y, y_pred, weight],
            batch.sizes.counts[micro_batch],
            self._scale,
            *self._divisors,
        )
        self._parts.append(parts)
        self._gradients.append(gradients)

    def take_losses(
        self,
        micro_batch: int,
        losses: Sequence[tf.Tensor],
        calls: Sequence[tuple[LayerCall, list[Value]]],
    ) -> list[tf.Tensor]:
        sizes, gradients = self._batch.sizes, []
        for loss, (call, read) in zip(losses, calls):
            rule = self._compiled.added_rule(call, read, self._training)
            share = sizes.is_used(micro_batch) if rule == ONE else sizes.share(micro_batch)
            self._added.append(as_loss(loss) * as_loss(share))
            gradients.append(tf.cast(share, loss.dtype) * tf.cast(self._scale, loss.dtype))
        return gradients

    def output_gradients(self, micro_batch: int) -> list[list[tf.Tensor | None]]:
        if self.couples_samples and not self._gradients:
            self._take_whole()
        return self._by_output(self._gradients[micro_batch])

    def finish(self) -> tf.Tensor:
        """The compiled loss with what layers added; whatever metrics still wait for is done."""
        if self.couples_samples and not self._parts:
            self._take_whole()
        values, entries = self._term_values(), self._compiled.entries
        self._track_terms(values)
        if not self._compiled.metrics_can_be_split:
            self._update_metrics_with_all()
        weights = [entry.loss_weights for entry, _ in entries]
        weighted = [v if w is None else v * w for v, w in zip(values, weights)]
        return sum([*weighted, *self._added], as_loss(0.0))

    def _track_terms(self, values: Sequence[tf.Tensor]) -> None:
        """Tracks each loss of several by itself, as Keras does."""
        entries = self._compiled.entries
        for (_, metric), value in zip(entries, values):
            if metric is not None and len(entries) == len(values):
                metric.update_state(value, sample_weight=self._batch.static_size)

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
            (values, gradients), _ = self._compiled.take_whole(
                [batch.y, y_pred, batch.sample_weight], self._scale
            )
            self._parts = [values]
            self._gradients = self._cut_gradients(gradients)

    def _cut_gradients(self, gradients: Sequence[tf.Tensor | None]) -> list[Any]:
        """Gradients of the whole outputs, cut like the micro-batches."""
        sizes = self._batch.sizes
        cut = micro_batches.split(list(gradients), sizes)
        return [
            [None if g is None else g * tf.cast(sizes.is_used(i), g.dtype) for g in part]
            for i, part in enumerate(cut)
        ]

    def _by_output(self, gradients: Sequence[Any]) -> list[list[Any]]:
        """Gradients of packed leaves, sorted by the output they belong to."""
        remaining = iter(gradients)
        return [[next(remaining) for _ in range(count)] for count in self._num_leaves]

    def _update_metrics_with_all(self) -> None:
        batch = self._batch
        with tf.device(self._compiled.device):
            outputs = self._all_outputs()
            self._compiled.update_metrics_with_all(batch.y, outputs, batch.sample_weight)


def merge_masked(outputs: Sequence[Value], sizes: Sizes) -> Value:
    """All outputs in one batch, with their masks."""
    merged = micro_batches.merge(outputs, sizes)
    for leaf, *parts in zip(tree.flatten(merged), *map(tree.flatten, outputs)):
        masks = [None if part is None else get_mask(part) for part in parts]
        if masks[0] is not None:
            set_mask(leaf, micro_batches.merge(masks, sizes))
    return merged
