"""Keras's masks, and how they cross the border of a `tf.function`.

Keras attaches a mask to a tensor as a Python attribute, which is lost where a `tf.function`
begins. Here a mask crosses as a tensor of its own and is attached again on the other side.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf
from keras import tree
from keras.src import backend


def get_mask(tensor: Any) -> Any:
    """The mask Keras attached to a tensor, or `None`."""
    return backend.get_keras_mask(tensor)


def set_mask(tensor: Any, mask: Any) -> None:
    """Attaches a mask to a tensor, as Keras's layers do."""
    backend.set_keras_mask(tensor, mask)


@dataclass(frozen=True, eq=False)
class Layout:
    """How a list of nested values lies flat.

    Attributes:
        structure: The nesting.
        is_tensor: For each leaf, whether it is a tensor; others are `None`.
        is_masked: For each leaf, whether it carries a mask.
    """

    structure: Any
    is_tensor: tuple[bool, ...]
    is_masked: tuple[bool, ...]

    @property
    def num_tensors(self) -> int:
        return sum(self.is_tensor) + sum(self.is_masked)

    def unpack(self, tensors: Sequence[Any]) -> list[Any]:
        """The values again, masks and all."""
        remaining = iter(tensors)
        leaves = [next(remaining) if there else None for there in self.is_tensor]
        for leaf, masked in zip(leaves, self.is_masked):
            if masked:
                set_mask(leaf, next(remaining))
        return list(tree.pack_sequence_as(self.structure, leaves))

    def key(self, specs: Sequence[tf.TypeSpec]) -> Hashable:
        """Equal for values that one trace can serve, given the specs of all its arguments."""
        return (str(self.structure), self.is_tensor, self.is_masked, *specs)


def pack(values: Sequence[Any]) -> tuple[list[Any], Layout]:
    """Lays values flat: first their tensors, then the masks of those that have one."""
    leaves = tree.flatten(list(values))
    masks = [None if leaf is None else get_mask(leaf) for leaf in leaves]
    layout = Layout(
        structure=tree.map_structure(lambda _: 0, list(values)),
        is_tensor=tuple(leaf is not None for leaf in leaves),
        is_masked=tuple(mask is not None for mask in masks),
    )
    there = [leaf for leaf in leaves if leaf is not None]
    return there + [mask for mask in masks if mask is not None], layout


def specs_of(tensors: Sequence[Any]) -> list[tf.TypeSpec]:
    """The specs that a function is traced with for these tensors."""
    return [tf.type_spec_from_value(tensor) for tensor in tensors]
