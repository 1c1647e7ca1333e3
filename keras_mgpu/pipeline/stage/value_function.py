"""Functions over nested values that keep Keras's masks.

Keras hangs a mask on a tensor as a Python attribute, which is lost where a `tf.function` begins.
Here a mask crosses as a tensor of its own and is hung up again on the other side.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf
from keras import tree

from keras_mgpu.internals.keras_variables import get_mask, set_mask
from keras_mgpu.internals.tf_functions import NO_INLINE
from keras_mgpu.model.layer_calls import Value
from keras_mgpu.pipeline.stage.xla import StageCompiler


@dataclass(frozen=True, eq=False)
class Layout:
    """How a list of values lies flat: its structure, and which leaves carry a mask."""

    structure: Any
    is_tensor: tuple[bool, ...]
    is_masked: tuple[bool, ...]

    def unpack(self, tensors: Sequence[tf.Tensor]) -> list[Value]:
        """The values again, masks and all."""
        remaining = iter(tensors)
        leaves = [next(remaining) if there else None for there in self.is_tensor]
        for leaf, masked in zip(leaves, self.is_masked):
            if masked:
                set_mask(leaf, next(remaining))
        return tree.pack_sequence_as(self.structure, leaves)


def pack(values: Sequence[Value]) -> tuple[list[tf.Tensor], Layout]:
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


# TensorFlow would copy the body into the step for every call, and optimize each copy: with many
# micro-batches that is most of the time to the first step, and hundreds of megabytes.
KEEP_AS_CALL = {"experimental_attributes": {NO_INLINE: True}}


@dataclass(frozen=True, eq=False)
class Trace:
    """A body traced for values of one layout.

    Attributes:
        function: The concrete function, over flat tensors.
        notes: What the body wrote down while it was traced.
        layout: How the values lie flat; further tensors stand behind them.
    """

    function: Any
    notes: dict[str, Any]
    layout: Layout


class ValueFunction:
    """Calls `body(notes, values, *tensors)`, traced once for each layout of the values.

    `notes` is an empty dict that the body may write to. What it wrote when it was traced comes
    back with every call.

    Args:
        body: Takes notes, a list of values and further tensors; returns nested tensors.
        eager: Call `body` itself each time, as `run_eagerly` asks for.
        compiler: Has it compiled, if that works.
        options: For `tf.function`.
    """

    def __init__(
        self,
        body: Callable[..., Any],
        eager: bool = False,
        compiler: StageCompiler | None = None,
        **options: Any,
    ) -> None:
        self._body = body
        self._eager = eager
        self._compiler = compiler
        self._options = options
        self._traces: dict[Any, Trace] = {}

    def __call__(self, values: Sequence[Value], *tensors: tf.Tensor) -> tuple[Any, dict[str, Any]]:
        """Runs the body on values and further tensors; returns its result and its notes."""
        if self._eager:
            notes: dict[str, Any] = {}
            return self._body(notes, list(values), *tensors), notes
        trace, flat = self.trace(values, *tensors)
        return trace.function(*flat), trace.notes

    def trace(self, values: Sequence[Value], *tensors: tf.Tensor) -> tuple[Trace, list[tf.Tensor]]:
        """Returns the trace that serves such values, and all the tensors to call it with."""
        flat, layout = pack(values)
        flat += tensors
        specs = [tf.type_spec_from_value(tensor) for tensor in flat]
        key = (str(layout.structure), layout.is_tensor, layout.is_masked, *specs)
        if key not in self._traces:
            self._traces[key] = self._trace(layout, len(flat) - len(tensors), specs)
        return self._traces[key], flat

    def forget(self) -> None:
        """Drops the traces: something outside that the body depends on has changed."""
        self._traces.clear()

    def _trace(self, layout: Layout, num_flat: int, specs: Sequence[tf.TypeSpec]) -> Trace:
        notes: dict[str, Any] = {}

        def flat_body(*tensors: tf.Tensor) -> Any:
            notes.clear()
            return self._body(notes, layout.unpack(tensors[:num_flat]), *tensors[num_flat:])

        def make(jit_compile: bool) -> Any:
            # `autograph` would rewrite the users' layers, which Keras traces as they are.
            return tf.function(
                flat_body, autograph=False, jit_compile=jit_compile or None, **self._options
            ).get_concrete_function(*specs)

        compiler = self._compiler
        function = make(False) if compiler is None else compiler.compiled_or_not(make)
        return Trace(function, notes, layout)
