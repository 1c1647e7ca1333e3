"""Traced functions: their graphs, the functions inside those, and ops that call functions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import context
from tensorflow.python.eager.polymorphic_function.polymorphic_function import Function

# For each op that calls functions, the attributes that name them; and for each such attribute,
# what TensorFlow puts between the name of the call and the names inside the function.
CALLS: Mapping[str, tuple[str, ...]] = {
    "PartitionedCall": ("f",),
    "StatefulPartitionedCall": ("f",),
    "While": ("cond", "body"),
    "StatelessWhile": ("cond", "body"),
    "If": ("then_branch", "else_branch"),
    "StatelessIf": ("then_branch", "else_branch"),
}
SCOPES: Mapping[str, str] = {
    "f": "",
    "cond": "cond",
    "body": "body",
    "then_branch": "then",
    "else_branch": "else",
}
# Keeps a function a call. TensorFlow would copy its body into the step for every call, and optimize
# each copy: with many micro-batches that is most of the time to the first step.
NO_INLINE = "_noinline"
KEEP_AS_CALL = {"experimental_attributes": {NO_INLINE: True}}  # As an option of `tf.function`.
# Nodes that must be placed together; may name ops that a cut has left elsewhere.
COLOCATION = "_class"
MUST_COMPILE = "_XlaMustCompile"


def scratch_graph(name: str) -> Any:
    """A graph that functions can be called in, to be thrown away."""
    return tf.__internal__.FuncGraph(name)


def is_eager(tensor: Any) -> bool:
    """Whether a tensor has a value already."""
    return isinstance(tensor, tf.__internal__.EagerTensor)


def is_traced(function: Any) -> bool:
    """Whether this is what `tf.function` returns."""
    return isinstance(function, Function)


def graphs_of(function: Any) -> list[Any]:
    """The graph of every trace of a `tf.function`."""
    return [concrete.graph for concrete in function._list_all_concrete_functions()]


def functions_in(graph: Any) -> dict[str, Any]:
    """The graphs of the functions that a graph calls, by name."""
    return {name: each.graph for name, each in graph._functions.items() if each.graph is not None}


def variant_of(dataset: tf.data.Dataset) -> tf.Tensor:
    """The variant tensor of a dataset, from which another dataset can be made."""
    return dataset._variant_tensor


def describe_argument(attributes: Any, tensor: tf.Tensor) -> None:
    """Writes down the shape of a function's argument, or of the variable it is a handle of."""
    attributes["_output_shapes"].list.shape.append(tensor.shape.as_proto())
    reads = [op.outputs[0] for op in tensor.consumers() if op.type == "ReadVariableOp"]
    if tensor.dtype == tf.resource and reads:
        attributes["_handle_dtypes"].list.type.append(reads[0].dtype.as_datatype_enum)
        attributes["_handle_shapes"].list.shape.append(reads[0].shape.as_proto())


def call_options() -> bytes:
    """TensorFlow's serialized options for calls, as they stand now."""
    return bytes(context.context().function_call_options.config_proto_serialized)
