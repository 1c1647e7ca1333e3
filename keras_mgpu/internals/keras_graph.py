"""How Keras keeps a model: its graph of calls, and layers inside layers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import keras
from keras import tree
from keras.src import backend
from keras.src.models.functional import Functional
from keras.src.utils.tracking import no_automatic_dependency_tracking

from keras_mgpu.internals.identity import IdentitySet

__all__ = ["Functional", "no_automatic_dependency_tracking"]


def graph_of(layer: Any) -> Functional | None:
    """The Functional graph that calling `layer` runs, or `None` if it runs code of its own."""
    if isinstance(layer, keras.Sequential):
        return layer._functional if type(layer).call is keras.Sequential.call else None
    if isinstance(layer, Functional) and type(layer).call is Functional.call:
        return layer
    return None


def nodes_in_order(graph: Functional) -> Iterator[Any]:
    """The calls of a graph in the order in which Keras runs them, inputs left out."""
    for depth in sorted(graph._nodes_by_depth, reverse=True):
        for node in graph._nodes_by_depth[depth]:
            if node.operation is not None and not node.is_input:
                yield node


def sublayers_of(layer: Any) -> list[Any]:
    """The layers right inside a layer; those that a model has beside its graph come last."""
    held = list(getattr(layer, "_layers", ()))
    if not isinstance(layer, (keras.Sequential, Functional)):
        return held
    known = IdentitySet(layer.layers)
    beside = [
        each
        for each in held
        if each not in known and not isinstance(each, (keras.layers.InputLayer, Functional))
    ]
    return [*layer.layers, *beside]


def compute_output_spec(function: Any, inputs: Any) -> Any:
    """What a function of Keras layers would return for inputs like these, as symbolic tensors."""
    return backend.compute_output_spec(function, tree.map_structure(symbolic, inputs))


def symbolic(tensor: Any) -> Any:
    """A symbolic tensor of the same shape and type; `None` stays `None`."""
    if tensor is None:
        return None
    shape = tuple(tensor.shape)
    return keras.KerasTensor(shape, backend.standardize_dtype(tensor.dtype))


def flatten_layers(layer: Any) -> list[keras.Layer]:
    """A layer and all layers inside it; an operation that is no layer has none."""
    return list(layer._flatten_layers()) if isinstance(layer, keras.Layer) else []


def standardize_inputs(graph: Functional, inputs: Any) -> list[Any]:
    """What a user feeds to a Functional model, as a list with one tensor per input."""
    return list(graph._standardize_inputs(inputs))


def pack_outputs(graph: Functional, values: Sequence[Any]) -> Any:
    """A list with one tensor per output, in the structure that calling the model returns."""
    packed = tree.pack_sequence_as(graph._outputs_struct, list(values))
    is_single = isinstance(packed, (list, tuple)) and len(packed) == 1
    return packed[0] if is_single else packed


def fill_in(
    node: Any, tensors: Sequence[Any], values: Sequence[Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a call in a graph, with values in the place of symbolic tensors."""
    args, kwargs = node.arguments.fill_in({id(t): value for t, value in zip(tensors, values)})
    return args, kwargs


def takes_training(operation: Any) -> bool:
    """Whether a Functional model passes `training` on to an operation."""
    return "training" in getattr(operation, "_call_context_args", ())
