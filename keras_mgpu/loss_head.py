"""What stands behind the last stage: the compiled loss and metrics, a micro-batch at a time.

Two heads do the same work. One takes each micro-batch as it comes out of the pipeline. The other
waits for all of them, for losses that cannot be taken apart. Which one it has to be is found out
with the first batch.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf
from keras import tree

from keras_mgpu import loss_terms, micro_batches, probe
from keras_mgpu.keras_internals import (
    build_losses_and_metrics,
    get_mask,
    loss_entries,
    move_variable,
    set_mask,
)
from keras_mgpu.layer_calls import LayerCall, Value
from keras_mgpu.loss_terms import COUPLED, ONE, ROWS, SAMPLES
from keras_mgpu.micro_batches import COUNT, Sizes
from keras_mgpu.stage_function import AssignmentScope
from keras_mgpu.stages import copy_to
from keras_mgpu.value_function import KEEP_AS_CALL, ValueFunction


@dataclass(frozen=True, eq=False)
class Batch:
    """A batch as `fit` hands it over, whole and in micro-batches.

    Attributes:
        x: Inputs, of which nothing traced with them knows the number.
        y: Targets, likewise.
        sample_weight: Weights, likewise.
        static_size: The number of samples, if it is known before the step runs.
        sizes: How many samples each micro-batch has.
        y_parts: The targets of each micro-batch.
        weight_parts: The weights of each.
    """

    x: Value
    y: Value
    sample_weight: Value
    static_size: int | None
    sizes: Sizes
    y_parts: list[Value]
    weight_parts: list[Value]

    @classmethod
    def of(
        cls,
        x: Value,
        y: Value,
        sample_weight: Value,
        num_micro_batches: int,
        full: tf.Variable | None = None,
    ) -> Batch:
        first = next(leaf for leaf in tree.flatten(x) if leaf is not None)
        whole = [micro_batches.open_sizes(value) for value in (x, y, sample_weight)]
        sizes = micro_batches.sizes_of(whole[0], num_micro_batches, full)
        y_parts, weight_parts = (micro_batches.split(value, sizes) for value in whole[1:])
        x, y, sample_weight = whole
        return cls(x, y, sample_weight, first.shape[0], sizes, y_parts, weight_parts)


class CompiledLoss:
    """The loss and metrics of a compiled model, and what has been found out about them.

    Lives from one `compile` to the next.

    Args:
        model: The user's compiled model.
        device: Where the last stage is; metrics live beside it.
        eager: Whether steps run without being traced.
        num_micro_batches: How often one step takes a loss.
    """

    def __init__(
        self, model: keras.Model, device: str, eager: bool, num_micro_batches: int
    ) -> None:
        self.model = model
        self.device = device
        self.rules: list[str] = []
        self.metrics_can_be_split = True
        self._is_cut = num_micro_batches > 1
        options: dict[str, Any] = KEEP_AS_CALL if self._is_cut else {}
        self.take_apart = ValueFunction(self._take_apart, eager, **options)
        self.take_whole = ValueFunction(self._take_whole, eager)
        self._added_rules: dict[int, str] = {}
        self._found: dict[str, tuple[list[str], bool]] = {}

    @property
    def couples_samples(self) -> bool:
        return COUPLED in self.rules

    def get_ready(self, x: Value, y: Value, y_pred: Value, sample_weight: Value) -> None:
        """Builds losses and metrics for outputs like these, and finds their rules.

        Rules depend on what a batch brings: with weights, a loss may divide by other things.
        """
        brings = str(tree.map_structure(lambda leaf: leaf is not None, (y, sample_weight)))
        if brings not in self._found:
            if not self._found:
                build_losses_and_metrics(self.model, x, y, y_pred, sample_weight)
                self._place_metrics()
            self.rules = [term.find_rule() for term in self._terms(y, y_pred, sample_weight)]
            self.metrics_can_be_split = self._probe_metrics(y, y_pred, sample_weight)
            self._say_what_is_gathered()
            self._found[brings] = self.rules, self.metrics_can_be_split
        self.rules, self.metrics_can_be_split = self._found[brings]

    def added_rule(self, call: LayerCall, read: list[Value], training: bool) -> str:
        """How a loss that a layer adds itself makes up the whole batch's: as mean or as sum."""
        key = id(call)
        if key not in self._added_rules:
            rules = {SAMPLES: probe.mean_of_parts, ONE: probe.sum_of_parts}
            modes = (training, False)
            found = [probe.find_rule(_losses_of(call, mode), (read,), rules) for mode in modes]
            rule = next((each for each in found if each is not None), None)
            if rule is None:
                warnings.warn(
                    f"The loss that layer '{call.name}' adds is neither a mean nor a sum over "
                    "samples. It is taken for each micro-batch and averaged, which can differ "
                    "from the whole batch's value. Use `micro_batches=1` for the latter.",
                    stacklevel=2,
                )
            self._added_rules[key] = rule or SAMPLES
        return self._added_rules[key]

    def divisors(
        self, batch: Batch, y_pred: Value, forward: Callable[[Value], Value]
    ) -> list[tf.Tensor]:
        """What the whole batch's loss terms are divided by; it must be known before any backward.

        Where a mask decides, it is found by running the whole batch through the layers for the
        mask alone: TensorFlow prunes what the mask does not depend on, most often everything.

        Args:
            batch: The whole batch.
            y_pred: The outputs of its first micro-batch, with their masks.
            forward: Runs the model's layers on inputs.
        """
        first = self._terms(batch.y_parts[0], y_pred, batch.weight_parts[0])
        if not any(term.needs_outputs(rule) for term, rule in zip(first, self.rules)):
            samples = tf.cast(batch.sizes.batch, COUNT)
            return [tf.ones((), COUNT) if rule in (ONE, ROWS) else samples for rule in self.rules]

        def count(notes: Any, values: list[Value], num_samples: tf.Tensor) -> list[tf.Tensor]:
            x, y, sample_weight = values
            with AssignmentScope():
                outputs = forward(x)
            terms = self._terms(y, outputs, sample_weight)
            return [term.divisor(rule, num_samples) for term, rule in zip(terms, self.rules)]

        eager = tf.executing_eagerly()
        values = [batch.x, batch.y, batch.sample_weight]
        return ValueFunction(count, eager)(values, batch.sizes.batch)[0]

    def _terms(self, y: Value, y_pred: Value, sample_weight: Value) -> list[loss_terms.Term]:
        if self.model._compile_loss is None:
            return []
        return loss_terms.resolve(self.model._compile_loss, y, y_pred, sample_weight)

    def _take_apart(
        self,
        notes: dict[str, Any],
        values: list[Value],
        num_samples: tf.Tensor,
        scale: tf.Tensor,
        *divisors: tf.Tensor,
    ) -> Any:
        """One micro-batch: its part of each term, gradients of its outputs, and its metrics."""
        y, y_pred, sample_weight = values
        is_used = tf.cast(num_samples > 0, COUNT)
        if self._is_cut:
            micro_batches.check_rows(y_pred, num_samples)
        with tf.name_scope("loss"), _Gradients(y_pred, scale) as gradients:
            parts = []
            terms = self._terms(y, y_pred, sample_weight)
            for term, rule, divisor in zip(terms, self.rules, divisors):
                share = is_used * tf.math.divide_no_nan(term.divisor(rule, num_samples), divisor)
                value = term.value()
                parts.append(value * tf.cast(share, value.dtype))
            gradients.of(parts, terms)
        if self.metrics_can_be_split and self.model._compile_metrics is not None:
            tf.cond(
                num_samples > 0,
                lambda: self._update_metrics(y, y_pred, sample_weight),
                lambda: tf.zeros((), tf.bool),
            )
        return parts, gradients.found

    def _take_whole(self, notes: dict[str, Any], values: list[Value], scale: tf.Tensor) -> Any:
        """The whole batch at once: each term, and gradients of all outputs."""
        y, y_pred, sample_weight = values
        with tf.name_scope("loss"), _Gradients(y_pred, scale) as gradients:
            terms = self._terms(y, y_pred, sample_weight)
            parts = [term.value() for term in terms]
            gradients.of(parts, terms)
        return parts, gradients.found

    def update_metrics_with_all(self, y: Value, y_pred: Value, sample_weight: Value) -> None:
        """For metrics that need the whole batch at once."""
        self.model._compile_metrics.update_state(y, y_pred, sample_weight)

    def _update_metrics(self, y: Value, y_pred: Value, sample_weight: Value) -> tf.Tensor:
        self.model._compile_metrics.update_state(y, y_pred, sample_weight)
        return tf.ones((), tf.bool)

    def _place_metrics(self) -> None:
        """Metrics read the last stage's outputs: beside it, nothing needs to be copied."""
        metrics = [self.model._compile_metrics] if self.model._compile_metrics else []
        for variable in [v for metric in metrics for v in metric.variables]:
            with tf.init_scope():
                move_variable(variable, copy_to(variable, self.device))

    def _probe_metrics(self, y: Value, y_pred: Value, sample_weight: Value) -> bool:
        metrics = self.model._compile_metrics
        if metrics is None:
            return True

        def state_after(*batches: Any) -> list[Any]:
            fresh = [(v, tf.zeros(v.shape, v.dtype)) for v in metrics.variables]
            with keras.StatelessScope(fresh) as scope:
                metrics.update_state(*batches)
                return [scope.get_current_value(v) for v in metrics.variables]

        rules = {ONE: probe.sum_of_parts}
        return probe.find_rule(state_after, (y, y_pred, sample_weight), rules) is not None

    def _say_what_is_gathered(self) -> None:
        if self.couples_samples:
            entries = loss_entries(self.model._compile_loss)
            names = [e.loss.name for (e, _), rule in zip(entries, self.rules) if rule == COUPLED]
            warnings.warn(
                f"The loss {', '.join(names)} couples the samples of a batch. To stay exact, the "
                "outputs of all micro-batches are gathered and the loss is taken once, so all "
                "forward passes run before the first backward pass (the order of "
                'schedule="gpipe", and its memory).',
                stacklevel=2,
            )
        if not self.metrics_can_be_split:
            warnings.warn(
                "A metric given to `compile` does not add up over micro-batches. To stay exact, "
                "the outputs of all micro-batches are kept and metrics are updated once a batch.",
                stacklevel=2,
            )


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
            self._added.append(_as_loss(loss) * _as_loss(share))
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
        values, entries = self._term_values(), self._entries()
        self._track_terms(values)
        if not self._compiled.metrics_can_be_split:
            self._update_metrics_with_all()
        weights = [entry.loss_weights for entry, _ in entries]
        weighted = [v if w is None else v * w for v, w in zip(values, weights)]
        return sum([*weighted, *self._added], _as_loss(0.0))

    def _track_terms(self, values: Sequence[tf.Tensor]) -> None:
        """Tracks each loss of several by itself, as Keras does."""
        entries = self._entries()
        for (_, metric), value in zip(entries, values):
            if metric is not None and len(entries) == len(values):
                metric.update_state(value, sample_weight=self._batch.static_size)

    def _entries(self) -> list[tuple[Any, Any]]:
        compile_loss = self._compiled.model._compile_loss
        return [] if compile_loss is None else loss_entries(compile_loss)

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


class _Gradients:
    """Records a loss and finds the gradients of the outputs it was taken from."""

    def __init__(self, y_pred: Value, scale: tf.Tensor) -> None:
        self._leaves = tree.flatten(y_pred)
        self._scale = scale
        self.found: list[tf.Tensor | None] = []

    def __enter__(self) -> _Gradients:
        self._tape = tf.GradientTape(watch_accessed_variables=False)
        self._tape.__enter__()
        self._tape.watch([leaf for leaf in self._leaves if _is_float(leaf)])
        return self

    def of(self, parts: Sequence[tf.Tensor], terms: Sequence[loss_terms.Term]) -> None:
        """The gradient of the weighted sum of all terms, times the scale."""
        self._weighted = [
            (part if term.weight is None else part * term.weight) * tf.cast(self._scale, part.dtype)
            for part, term in zip(parts, terms)
        ]

    def __exit__(self, *exception: Any) -> None:
        self._tape.__exit__(*exception)
        if exception[0] is None:
            sources = [leaf for leaf in self._leaves if _is_float(leaf)]
            gradients = iter(self._tape.gradient(self._weighted, sources) if self._weighted else [])
            self.found = [next(gradients, None) if _is_float(x) else None for x in self._leaves]


def _as_loss(value: Any) -> tf.Tensor:
    return tf.cast(value, keras.backend.floatx())


def _is_float(leaf: Any) -> bool:
    return isinstance(leaf, tf.Tensor) and leaf.dtype.is_floating


def _losses_of(call: LayerCall, training: bool) -> Callable[[list[Value]], tf.Tensor]:
    """What a layer adds to the loss, as a function of what it reads."""

    def losses(read: list[Value]) -> tf.Tensor:
        with AssignmentScope() as scope:
            call.run(read, training)
            return tf.add_n([_as_loss(tf.reduce_sum(x)) for x in scope.losses])

    return losses
