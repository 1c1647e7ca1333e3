"""The compiled loss and metrics, and what can be done with them a micro-batch at a time.

Whether a loss can be taken apart, and what its parts are divided by, is found out with the first
batch.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, NamedTuple

import keras
import tensorflow as tf
from keras import tree

from keras_mgpu.internals.identity import IdentityMap, unique
from keras_mgpu.internals.keras_losses import (
    build_losses_and_metrics,
    compiled_loss_of,
    compiled_metrics_of,
    loss_entries,
    loss_tracker_of,
)
from keras_mgpu.internals.keras_masks import Layout, pack, specs_of
from keras_mgpu.internals.keras_state import AssignmentScope, made_before_tracing
from keras_mgpu.model.layer_calls import LayerCall, Value
from keras_mgpu.model.placing import Load, place
from keras_mgpu.pipeline import micro_batches
from keras_mgpu.pipeline.loss import loss_terms, separability
from keras_mgpu.pipeline.loss.loss_terms import COUPLED, ONE, ROWS, SAMPLES
from keras_mgpu.pipeline.micro_batches import COUNT, Batch, Number, as_tensor
from keras_mgpu.pipeline.stage import stage_errors
from keras_mgpu.pipeline.stage.piece_function import PieceMaker, WholeFunction
from keras_mgpu.pipeline.stage.stage_function import LossCall

_HELPS = "metrics that keep less, or `cuts` that give the last stage fewer layers"


class LossParts(NamedTuple):
    """The terms of a loss, taken of a micro-batch or of all of them.

    Args:
        values: For each term its value, or the micro-batch's part of it.
        gradients: For each leaf of the outputs the gradient of the total loss, or `None`.
    """

    values: list[tf.Tensor]
    gradients: list[tf.Tensor | None]


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
        self._loss = compiled_loss_of(model)
        self._metrics = compiled_metrics_of(model)
        self.rules: list[str] = []
        self.metrics_can_be_split = True
        self._is_cut = num_micro_batches > 1
        self._eager = eager
        self._parts: dict[Hashable, Any] = {}
        self._added_rules: IdentityMap[LayerCall, dict[int, str]] = IdentityMap()
        self._found: dict[str, tuple[list[str], bool]] = {}

    @contextlib.contextmanager
    def by_hand(self) -> Iterator[None]:
        """Losses are computed without being traced."""
        before, self._eager = self._eager, True
        try:
            yield
        finally:
            self._eager = before

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
                with made_before_tracing():
                    build_losses_and_metrics(self.model, x, y, y_pred, sample_weight)
                    self._place_metrics()
            self.rules = [term.find_rule() for term in self._terms(y, y_pred, sample_weight)]
            self.metrics_can_be_split = self._metrics is None or separability.metric_adds_up(
                self._metrics, (y, y_pred, sample_weight)
            )
            self._warn_of_gathering()
            self._found[brings] = self.rules, self.metrics_can_be_split
        self.rules, self.metrics_can_be_split = self._found[brings]

    def added_rule(self, added: LossCall, training: bool) -> str:
        """How a loss that a layer adds makes up the whole batch's: as a mean or as a sum."""
        rules = self._added_rules.setdefault(added.call, {})
        if added.place not in rules:
            rules_by_name = {SAMPLES: separability.mean_of_parts, ONE: separability.sum_of_parts}
            rule = separability.find_added_rule(added, training, rules_by_name)
            if rule is None:
                warnings.warn(
                    f"The loss added by layer '{added.call.name}' is neither a mean nor a sum over "
                    "samples. It is computed per micro-batch and averaged, which can differ from "
                    "the value for the whole batch. Use `micro_batches=1` to get the latter.",
                    stacklevel=2,
                )
            rules[added.place] = rule or SAMPLES
        return rules[added.place]

    def divisors(
        self, batch: Batch, y_pred: Value, forward: Callable[[Value], Value]
    ) -> list[Number]:
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
            samples = batch.sizes.batch
            if not batch.sizes.are_known:
                samples = tf.cast(samples, COUNT)
            return [1.0 if rule in (ONE, ROWS) else samples for rule in self.rules]

        def count(x: Value, y: Value, sample_weight: Value) -> list[tf.Tensor]:
            with AssignmentScope():
                outputs = forward(x)
            terms = self._terms(y, outputs, sample_weight)
            num_samples = batch.sizes.batch
            return [term.divisor(rule, num_samples) for term, rule in zip(terms, self.rules)]

        counted = count if self._eager else tf.function(count, autograph=False)
        return list(counted(batch.x, batch.y, batch.sample_weight))

    @property
    def entries(self) -> list[tuple[Any, Any]]:
        """Each loss with the metric that tracks it, or `None`."""
        return [] if self._loss is None else loss_entries(self._loss)

    def _terms(self, y: Value, y_pred: Value, sample_weight: Value) -> list[loss_terms.Term]:
        if self._loss is None:
            return []
        return loss_terms.resolve(self._loss, y, y_pred, sample_weight)

    def take_apart(
        self,
        y: Value,
        y_pred: Value,
        sample_weight: Value,
        *,
        num_samples: Number,
        scale: Number,
        divisors: Sequence[Number],
    ) -> LossParts:
        """One micro-batch: its part of each term, gradients of its outputs, and its metrics.

        Args:
            y: Its targets.
            y_pred: Its outputs, with their masks.
            sample_weight: Its weights.
            num_samples: How many samples it has of its own.
            scale: What gradients are multiplied by.
            divisors: What the whole batch's terms are divided by.
        """
        flat, layout = pack([y, y_pred, sample_weight])
        if self._eager:
            with stage_errors.in_loss(self.device):
                return self._take_apart([y, y_pred, sample_weight], num_samples, scale, *divisors)
        numbers = [num_samples, scale, *divisors]
        tensors = [*flat, *filter(tf.is_tensor, numbers)]
        specs = specs_of(tensors)
        known = tuple(None if tf.is_tensor(number) else number for number in numbers)
        key = layout.key(specs), known
        if key not in self._parts:
            self._parts[key] = self._trace(layout, specs, known)
        with tf.name_scope("loss"):  # Below that of the op, which the stage's call is in.
            return LossParts(*self._parts[key](*tensors))

    def _trace(
        self, layout: Layout, specs: Sequence[tf.TypeSpec], known: Sequence[Number | None]
    ) -> Any:
        """The function of `take_apart`; numbers that are known become part of it."""

        def body(*tensors: tf.Tensor) -> LossParts:
            values = layout.unpack(tensors[: layout.num_tensors])
            given = iter(tensors[layout.num_tensors :])
            numbers = [next(given) if number is None else number for number in known]
            return self._take_apart(values, *numbers)

        function = tf.function(body, autograph=False).get_concrete_function(*specs)
        maker = PieceMaker(self._is_cut, self.device, must_run=True)
        return WholeFunction(function, maker, "loss")

    def _take_apart(
        self,
        values: Sequence[Value],
        num_samples: Number,
        scale: Number,
        *divisors: Number,
    ) -> LossParts:
        y, y_pred, sample_weight = values
        is_used = 1.0
        if isinstance(num_samples, tf.Tensor):
            is_used = tf.cast(num_samples > 0, COUNT)
        if self._is_cut:
            micro_batches.check_rows(y_pred, num_samples)
        with tf.name_scope("loss"), _Gradients(y_pred, scale) as gradients:
            parts = []
            terms = self._terms(y, y_pred, sample_weight)
            for term, rule, divisor in zip(terms, self.rules, divisors):
                of_batch = as_tensor(divisor, COUNT)
                share = is_used * tf.math.divide_no_nan(term.divisor(rule, num_samples), of_batch)
                value = term.value()
                parts.append(value * tf.cast(share, value.dtype))
            gradients.of(parts, terms)
        if self.metrics_can_be_split and self._metrics is not None:
            if isinstance(num_samples, tf.Tensor):
                tf.cond(
                    num_samples > 0,
                    lambda: self._update_metrics(y, y_pred, sample_weight),
                    lambda: tf.zeros((), tf.bool),
                )
            else:
                self._update_metrics(y, y_pred, sample_weight)
        return LossParts(parts, gradients.found)

    def take_whole(self, y: Value, y_pred: Value, sample_weight: Value, scale: Number) -> LossParts:
        """The whole batch at once: each term, and gradients of all outputs."""
        with tf.name_scope("loss"), _Gradients(y_pred, scale) as gradients:
            terms = self._terms(y, y_pred, sample_weight)
            parts = [term.value() for term in terms]
            gradients.of(parts, terms)
        return LossParts(parts, gradients.found)

    def update_metrics_with_all(self, y: Value, y_pred: Value, sample_weight: Value) -> None:
        """For metrics that need the whole batch at once, or have to wait for it."""
        if self._metrics is not None:
            self._metrics.update_state(y, y_pred, sample_weight)

    def _update_metrics(self, y: Value, y_pred: Value, sample_weight: Value) -> tf.Tensor:
        self._metrics.update_state(y, y_pred, sample_weight)
        return tf.ones((), tf.bool)

    def _place_metrics(self) -> None:
        """Metrics read the last stage's outputs: beside it, nothing needs to be copied."""
        of_losses = [metric for _, metric in self.entries]
        metrics = [self._metrics, *of_losses, loss_tracker_of(self.model)]
        variables = unique(v for metric in filter(None, metrics) for v in metric.variables)
        place([Load("the compiled metrics", self.device, variables, _HELPS)])

    def _warn_of_gathering(self) -> None:
        if self.couples_samples:
            names = [
                e.loss.name for (e, _), rule in zip(self.entries, self.rules) if rule == COUPLED
            ]
            warnings.warn(
                f"The loss {', '.join(names)} couples the samples of a batch. To stay exact, the "
                "outputs of all micro-batches are gathered and the loss is computed once, so all "
                "forward passes run before the first backward pass: the order and the memory of "
                'schedule="gpipe".',
                stacklevel=2,
            )
        if not self.metrics_can_be_split:
            warnings.warn(
                "A metric given to `compile` does not add up over micro-batches. To stay exact, "
                "the outputs of all micro-batches are kept and metrics are updated once per batch.",
                stacklevel=2,
            )


class _Gradients:
    """Records a loss and finds the gradients of the outputs it was taken from."""

    def __init__(self, y_pred: Value, scale: Number) -> None:
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
            (part if term.weight is None else part * term.weight)
            * as_tensor(self._scale, part.dtype)
            for part, term in zip(parts, terms)
        ]

    def __exit__(self, *exception: Any) -> None:
        self._tape.__exit__(*exception)
        if exception[0] is None:
            sources = [leaf for leaf in self._leaves if _is_float(leaf)]
            gradients = iter(self._tape.gradient(self._weighted, sources) if self._weighted else [])
            self.found = [next(gradients, None) if _is_float(x) else None for x in self._leaves]


def as_loss(value: Any) -> tf.Tensor:
    """In the type in which Keras adds losses up."""
    return tf.cast(value, keras.backend.floatx())


def _is_float(leaf: Any) -> bool:
    return isinstance(leaf, tf.Tensor) and leaf.dtype.is_floating
