"""A piece of a graph as a function that steps can call.

It is written down as TensorFlow's own function definition, out of the nodes that exist already.
Tracing it anew would take longer than all the rest of getting ready.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import tensorflow as tf

from keras_mgpu.internals.tf_functions import COLOCATION, NO_INLINE, describe_argument
from keras_mgpu.pipeline.stage.graph_cut import GraphOps, Piece, PieceContent

# What a control edge can start from: an op, or in place of one a tensor that it makes.
Waitable: TypeAlias = tf.Operation | tf.Tensor


@dataclass(frozen=True, eq=False)
class Called:
    """What a call of a piece gave.

    Attributes:
        results: The tensors it returns.
        done: What others can wait for.
    """

    results: list[tf.Tensor]
    done: Waitable


class PieceCall(Protocol):
    """A piece of a graph that can be called, compiled or not."""

    def __call__(self, tensors: Sequence[tf.Tensor]) -> Called:
        """Calls it in the graph that is being built."""


@dataclass(frozen=True, eq=False)
class PieceFunction:
    """A piece of a graph as a function that steps can call.

    Attributes:
        name: The name of TensorFlow's function.
        captured: What it is given beside its arguments.
        fetches: Tensors of the graph that it returns.
        options: TensorFlow's serialized options for calls.
    """

    name: str
    captured: Sequence[Any]
    fetches: Sequence[tf.Tensor]
    options: bytes

    def __call__(self, tensors: Sequence[tf.Tensor]) -> Called:
        here = tf.compat.v1.get_default_graph()
        result = tf.raw_ops.StatefulPartitionedCall(
            args=[*tensors, *(here.capture(outer) for outer in self.captured)],
            Tout=[tensor.dtype for tensor in self.fetches],
            f=self.name,
            config_proto=self.options,
        )
        if isinstance(result, tf.Operation):
            return Called([], result)
        for tensor, fetched in zip(result, self.fetches):
            tensor.set_shape(fetched.shape)
        return Called(list(result), result[0].op)


@dataclass(frozen=True)
class PieceMaker:
    """Makes functions of pieces of a graph.

    Attributes:
        stays_a_call: Whether they must not be copied into the step that calls them.
        options: TensorFlow's serialized options for calls.
    """

    stays_a_call: bool
    options: bytes

    def __call__(self, graph: GraphOps, piece: Piece, name: str) -> PieceFunction:
        """Makes one of a piece; its name begins with `name`."""
        content = graph.needed_for(piece)
        functions = tf.compat.v1.GraphDef()
        definition = functions.library.function.add()
        _write_arguments(definition, [*piece.feeds, *content.inner])
        _write_body(definition, graph, piece, content)
        definition.attr[NO_INLINE].b = self.stays_a_call
        definition.signature.name = f"{name}_{uuid.uuid4().hex}"
        with tf.init_scope():  # Where every graph finds it.
            tf.graph_util.import_graph_def(functions, name="")
        return PieceFunction(definition.signature.name, content.outer, piece.fetches, self.options)


def _write_arguments(definition: Any, arguments: Sequence[tf.Tensor]) -> None:
    definition.signature.is_stateful = True
    for index, tensor in enumerate(arguments):
        definition.signature.input_arg.add(
            name=f"argument_{index}", type=tensor.dtype.as_datatype_enum
        )
        describe_argument(definition.arg_attr[index].attr, tensor)


def _write_body(definition: Any, graph: GraphOps, piece: Piece, content: PieceContent) -> None:
    """Writes down nodes as in the graph, but with other names for their edges."""
    arguments, inside = [*piece.feeds, *content.inner], set(content.ops)
    names = {tensor.ref(): f"argument_{index}" for index, tensor in enumerate(arguments)}
    for op in content.ops:
        node = definition.node_def.add()
        node.CopyFrom(graph.node_of(op))
        node.attr.pop(COLOCATION, None)  # May name ops that are elsewhere now.
        del node.input[:]
        read = graph.inputs_of(op)
        node.input.extend(names.get(tensor.ref()) or _edge_name(tensor) for tensor in read)
        node.input.extend(f"^{each.name}" for each in op.control_inputs if each in inside)
        # Ops that only read a variable, too: an assignment must wait for them.
        if op.op_def.is_stateful:
            definition.control_ret[op.name] = op.name
            definition.signature.control_output.append(op.name)
    for index, fetched in enumerate(piece.fetches):
        tensor, name = graph.one_of(fetched), f"result_{index}"
        definition.signature.output_arg.add(name=name, type=tensor.dtype.as_datatype_enum)
        definition.ret[name] = names.get(tensor.ref()) or _edge_name(tensor)


def _edge_name(tensor: tf.Tensor) -> str:
    """A tensor's name inside a function: by its op, the op's output and the place in that."""
    place = tensor.value_index
    for output in tensor.op.op_def.output_arg:
        size = _num_tensors(tensor.op, output)
        if place < size:
            return f"{tensor.op.name}:{output.name}:{place}"
        place -= size
    raise ValueError(f"No output of its op holds the tensor. Received: tensor={tensor}")


def _num_tensors(op: tf.Operation, output: Any) -> int:
    if output.number_attr:
        return int(op.get_attr(output.number_attr))
    if output.type_list_attr:
        return len(op.get_attr(output.type_list_attr))
    return 1
