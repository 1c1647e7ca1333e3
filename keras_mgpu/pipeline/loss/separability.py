"""Finds out by trying whether something can be computed micro-batch by micro-batch.

A user's loss is a Python function: nobody can tell from outside whether it treats samples one by
one. So it is tried on a few random samples, whole and in parts, under each rule that could put the
parts together. A rule is used only if it gave the whole batch's number every time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import tree

from keras_mgpu.internals.keras_state import AssignmentScope
from keras_mgpu.pipeline.stage.stage_function import LossCall

Rule = Callable[[Sequence[Any], Sequence[Any]], Any]  # (results of parts, parts) -> whole's result

PARTS = ((0, 1), (1, 4))  # Of four samples: uneven, so that a mean of means shows.
NUM_SAMPLES = PARTS[-1][1]
UNKNOWN_DIMENSION = 8
LARGEST = 2**24  # Numbers in one random tensor; above, all axes but the last are shortened.
TOLERANCE = 1e-4

# Labels against predictions, in every range that losses are made for. A draw that a loss cannot
# take, such as a class too large, is left out. Marks for "ignore this" are drawn too: a loss that
# divides by what it did not ignore is a plain mean until it meets one.
DRAWS = (
    ("binary", "unit"),
    ("classes", "unit"),
    ("classes", "normal"),
    ("unit", "unit"),
    ("normal", "normal"),
    (-100, "unit"),
    (-100, "normal"),
    (-1, "unit"),
    (-1, "normal"),
    (255, "unit"),
    (float("nan"), "unit"),
    (float("nan"), "normal"),
)


def find_rule(
    function: Callable[..., Any], specs: tuple[Any, ...], rules: Mapping[str, Rule]
) -> str | None:
    """The name of the first rule under which parts give the whole's result, or `None`.

    Args:
        function: Takes values like `specs`; returns a number or a list of arrays.
        specs: For each argument a nested structure of tensors or specs. The first argument's are
            drawn as labels.
        rules: Ways to put the parts' results together.
    """
    with tf.init_scope(), tf.device("/CPU:0"):
        for shorten in (True, False):
            trials = [_try(function, values) for values in _draws(specs, shorten)]
            if any(trial is not None for trial in trials):
                return _matching_rule([trial for trial in trials if trial is not None], rules)
    return None


def metric_adds_up(metric: keras.Metric, specs: tuple[Any, ...]) -> bool:
    """Whether updating a metric with one part after the other is like updating it with all."""

    def state_after(*batches: Any) -> list[Any]:
        fresh = [(v, tf.zeros(v.shape, v.dtype)) for v in metric.variables]
        with keras.StatelessScope(fresh) as scope:
            metric.update_state(*batches)
            return [scope.get_current_value(v) for v in metric.variables]

    return find_rule(state_after, specs, {"sum": sum_of_parts}) is not None


def find_added_rule(added: LossCall, training: bool, rules: Mapping[str, Rule]) -> str | None:
    """The rule for a loss that a layer adds, in training mode or else in inference mode."""

    def loss_in(mode: bool) -> Callable[[list[Any]], Any]:
        def loss(read: list[Any]) -> Any:
            with AssignmentScope() as scope:
                added.call.run(read, mode)
                return tf.reduce_sum(scope.losses[added.place])

        return loss

    for mode in (training, False):  # Random numbers, of dropout say, make trials disagree.
        rule = find_rule(loss_in(mode), (added.read,), rules)
        if rule is not None:
            return rule
    return None


def sizes_of(parts: Sequence[Any]) -> list[int]:
    """How many samples each part has."""
    leaves = [next(leaf for leaf in tree.flatten(part) if leaf is not None) for part in parts]
    return [int(leaf.shape[0]) for leaf in leaves]


def mean_of_parts(results: Sequence[Any], parts: Sequence[Any]) -> Any:
    """A mean over samples: parts count by their samples."""
    sizes = sizes_of(parts)
    return sum(result * size for result, size in zip(results, sizes)) / sum(sizes)


def sum_of_parts(results: Sequence[Any], parts: Sequence[Any]) -> Any:
    """A sum over samples."""
    return sum(results)


def parts_in_a_row(results: Sequence[Any], parts: Sequence[Any]) -> Any:
    """One result for each sample."""
    return np.concatenate(results, axis=0)


def _matching_rule(
    trials: Sequence[tuple[Any, list[Any], list[Any]]], rules: Mapping[str, Rule]
) -> str | None:
    telling = [trial for trial in trials if np.all(np.isfinite(trial[0])) and np.any(trial[0])]
    for name, combine in rules.items():
        if telling and all(_holds(combine, *trial) for trial in telling):
            return name
    return None


def _holds(combine: Rule, whole: Any, results: list[Any], parts: list[Any]) -> bool:
    try:
        combined = np.asarray(combine(results, parts))
    except ValueError:  # Results whose shapes do not fit the rule.
        return False
    close_enough = TOLERANCE * np.max(np.abs(whole))
    return whole.shape == combined.shape and np.allclose(whole, combined, TOLERANCE, close_enough)


def _try(
    function: Callable[..., Any], values: tuple[Any, ...]
) -> tuple[Any, list[Any], list[Any]] | None:
    """Results for the whole and for the parts; `None` if these values cannot be taken."""
    parts = [_part(values, start, end) for start, end in PARTS]
    try:
        return _flat(function(*values)), [_flat(function(*part)) for part in parts], parts
    except Exception:  # An error on random values says nothing about real ones.
        return None


def _part(values: tuple[Any, ...], start: int, end: int) -> Any:
    return tree.map_structure(lambda leaf: None if leaf is None else leaf[start:end], values)


def _flat(result: Any) -> Any:
    """One array: of a single result its own, of a list of results all their numbers."""
    if isinstance(result, (list, tuple)):
        return np.concatenate([np.ravel(np.asarray(each, "float64")) for each in result])
    return np.asarray(result, "float64")


def _draws(specs: tuple[Any, ...], shorten: bool) -> list[tuple[Any, ...]]:
    random = _Random(specs, shorten)
    return [
        (random.like(specs[0], labels), *(random.like(spec, rest) for spec in specs[1:]))
        for labels, rest in DRAWS
    ]


class _Random:
    """Draws values like given specs, with sizes that fit one another."""

    def __init__(self, specs: tuple[Any, ...], shorten: bool) -> None:
        leaves = [leaf for leaf in tree.flatten(specs) if leaf is not None]
        shapes = [tuple(leaf.shape) for leaf in leaves]
        # A size that one spec leaves open is taken from another spec with the same axis.
        self._sizes = {axis: n for shape in shapes for axis, n in enumerate(shape) if n is not None}
        self._num_classes = max([shape[-1] or 2 for shape in shapes if len(shape) > 1], default=2)
        self._shorten = shorten
        self._generator = np.random.default_rng(0)

    def like(self, spec: Any, kind: str | float) -> Any:
        return tree.map_structure(lambda leaf: self._leaf(leaf, kind), spec)

    def _leaf(self, spec: Any, kind: str | float) -> Any:
        if spec is None:
            return None
        return tf.cast(self._numbers(self._shape(spec), kind, spec), tf.as_dtype(spec.dtype))

    def _shape(self, spec: Any) -> list[int]:
        given = enumerate(tuple(spec.shape)[1:], start=1)
        sizes = [n or self._sizes.get(axis, UNKNOWN_DIMENSION) for axis, n in given]
        if self._shorten and math.prod(sizes) * NUM_SAMPLES > LARGEST:
            sizes = [*(min(size, UNKNOWN_DIMENSION) for size in sizes[:-1]), sizes[-1]]
        return [NUM_SAMPLES, *sizes]

    def _numbers(self, shape: list[int], kind: str | float, spec: Any) -> Any:
        is_float = tf.as_dtype(spec.dtype).is_floating
        if kind == "classes":
            return self._generator.integers(0, max(self._num_classes, 2), shape)
        numbers = self._generator.integers(0, 2, shape)
        if not isinstance(kind, str) and (is_float or not math.isnan(kind)):
            # The first sample is left unmarked: one part, but not the whole, is all valid.
            marked = self._generator.random(shape) < 0.5
            marked[0], marked[1] = False, True
            return np.where(marked, kind, numbers)
        if kind == "binary" or not is_float:
            return numbers
        if kind == "unit":
            return self._generator.uniform(0.05, 0.95, shape)
        return self._generator.normal(0.0, 2.0, shape)
