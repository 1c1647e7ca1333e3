"""Finds out by trying whether something can be taken micro-batch by micro-batch.

A user's loss is a Python function: nobody can tell from outside whether it treats samples one by
one. So it is tried on a few random samples, whole and in parts, under each rule that could put the
parts together. A rule is used only if it gave the whole batch's number every time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from keras import tree

Rule = Callable[[Sequence[Any], Sequence[Any]], Any]  # (results of parts, parts) -> whole's result

PARTS = ((0, 1), (1, 4))  # Of four samples: uneven, so that a mean of means shows.
NUM_SAMPLES = PARTS[-1][1]
UNKNOWN_DIMENSION = 8
LARGEST = 2**24  # Numbers in one random tensor; above, all axes but the last are shortened.
TOLERANCE = 1e-4

# What losses are made for: labels against probabilities, and any number against any other.
DRAWS = (("binary", "unit"), ("unit", "unit"), ("normal", "normal"), ("binary", "normal"))


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
            try:
                trials = [_try(function, values) for values in _draws(specs, shorten)]
            except Exception:  # Whatever the user's code raises on random values tells nothing.
                continue
            return _matching_rule(trials, rules)
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


def _try(function: Callable[..., Any], values: tuple[Any, ...]) -> tuple[Any, list[Any], list[Any]]:
    parts = [_part(values, start, end) for start, end in PARTS]
    return _flat(function(*values)), [_flat(function(*part)) for part in parts], parts


def _part(values: tuple[Any, ...], start: int, end: int) -> Any:
    return tree.map_structure(lambda leaf: None if leaf is None else leaf[start:end], values)


def _flat(result: Any) -> Any:
    """One array: of a single result its own, of a list of results all their numbers."""
    if isinstance(result, (list, tuple)):
        return np.concatenate([np.ravel(np.asarray(each, "float64")) for each in result])
    return np.asarray(result, "float64")


def _draws(specs: tuple[Any, ...], shorten: bool) -> list[tuple[Any, ...]]:
    generator = np.random.default_rng(0)

    def draw(spec: Any, kind: str) -> Any:
        return tree.map_structure(lambda each: _random(each, kind, generator, shorten), spec)

    return [(draw(specs[0], labels), *(draw(s, rest) for s in specs[1:])) for labels, rest in DRAWS]


def _random(spec: Any, kind: str, generator: np.random.Generator, shorten: bool) -> Any:
    if spec is None:
        return None
    shape = [NUM_SAMPLES, *(size or UNKNOWN_DIMENSION for size in tuple(spec.shape)[1:])]
    if shorten and math.prod(shape) > LARGEST:
        shape = [shape[0], *(min(size, UNKNOWN_DIMENSION) for size in shape[1:-1]), shape[-1]]
    dtype = tf.as_dtype(spec.dtype)
    if kind == "binary" or not dtype.is_floating:
        return tf.cast(generator.integers(0, 2, shape), dtype)
    if kind == "normal":
        return tf.cast(generator.normal(0.0, 2.0, shape), dtype)
    return tf.cast(generator.uniform(0.05, 0.95, shape), dtype)
