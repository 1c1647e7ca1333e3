"""How a checkpoint and a model disagree, before anything is read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from keras_mgpu.checkpoints.manifest import TensorEntry


@dataclass(frozen=True)
class Mismatch:
    """How a checkpoint and a model disagree.

    Args:
        missing: Keys that only the model has.
        unexpected: Keys that only the checkpoint has.
        different: Keys of both, with the shape and type in each.
    """

    missing: tuple[str, ...]
    unexpected: tuple[str, ...]
    different: tuple[tuple[str, str], ...]

    def __bool__(self) -> bool:
        return bool(self.missing or self.unexpected or self.different)

    def __str__(self) -> str:
        different = [f"{key}: {what}" for key, what in self.different]
        kinds = {
            "missing in the checkpoint": self.missing,
            "unexpected in the checkpoint": self.unexpected,
            "different": different,
        }
        return "\n".join(
            line
            for kind, keys in kinds.items()
            if keys
            for line in [f"{kind} ({len(keys)}):", *(f"  {key}" for key in keys)]
        )


def mismatch_of(saved: Iterable[TensorEntry], variables: Mapping[str, Any]) -> Mismatch:
    """Compares what a checkpoint has with what a model and its optimizer need."""
    found = {entry.key: entry for entry in saved if _is_variable(entry.key)}
    wanted = {
        key: TensorEntry(key, tuple(variable.shape), tf.as_dtype(variable.dtype).name)
        for key, variable in variables.items()
    }
    return Mismatch(
        missing=tuple(key for key in wanted if key not in found),
        unexpected=tuple(key for key in found if key not in wanted),
        different=tuple(
            (key, f"{_as_text(found[key])} in the checkpoint, {_as_text(entry)} in the model")
            for key, entry in wanted.items()
            if key in found and found[key] != entry
        ),
    )


def _is_variable(key: str) -> bool:
    return key.startswith(("model/", "optimizer/", "optimizers/"))


def _as_text(entry: TensorEntry) -> str:
    return f"{entry.dtype}{list(entry.shape)}"
