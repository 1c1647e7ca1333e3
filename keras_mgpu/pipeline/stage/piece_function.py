"""A piece of a graph as a function that steps can call.

It is written down as TensorFlow's own function definition, out of the nodes that exist already.
Tracing it anew would take longer than all the rest of getting ready.
"""

from __future__ import annotations

import functools
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import tensorflow as tf

from keras_mgpu.internals.tf_functions import (
    COLOCATION,
    NO_INLINE,
    call_options,
    describe_argument,
)
from keras_mgpu.pipeline.stage.device_integers import (
    BITS,
    Conversions,
    DeviceIntegers,
    as_bits,
    as_integers,
)
from keras_mgpu.pipeline.stage.graph_cut import GraphOps, Piece, PieceContent

# What a control edge can start from: an op, or in place of one a tensor that it makes.
Waitable: TypeAlias = tf.Operation | tf.Tensor
# The type of what every call returns last; `int32` stays on the host.
DONE = tf.int32


@dataclass(frozen=True, eq=False)
class Called:
    """What a call of a piece gave.

    Attributes:
        results: The tensors it returns.
        done: What others can wait for: a tensor that it returns beside them.
    """

    results: list[tf.Tensor]
    done: tf.Tensor


class PieceCall(Protocol):
    """A piece of a graph that can be called, compiled or not."""

    def __call__(self, tensors: Sequence[tf.Tensor]) -> Called:
        """Calls it in the graph that is being built."""


@dataclass(frozen=True, eq=False)
class PieceFunction:
    """A piece of a graph as a function that steps can call.

    Attributes:
        name: The name of TensorFlow's function.
        feeds: Tensors of the graph that its arguments stand for.
        captured: What it is given beside its arguments.
        fetches: Tensors of the graph that it returns.
        integers: Knows which of them are integers on the device.
        must_run: Whether it runs even if nothing reads what it returns or writes.
    """

    name: str
    feeds: Sequence[tf.Tensor]
    captured: Sequence[Any]
    fetches: Sequence[tf.Tensor]
    integers: DeviceIntegers
    must_run: bool

    def __call__(self, tensors: Sequence[tf.Tensor]) -> Called:
        capture = (lambda outer: outer) if tf.executing_eagerly() else _capture
        are_in = self.integers.are_in
        given = [as_bits(x) if are_in(feed) else x for x, feed in zip(tensors, self.feeds)]
        # TensorFlow has every stateful call send a signal to the device where the step ends, and
        # leaves out others whose results nobody reads: `done` is read where sums are.
        call = tf.raw_ops.StatefulPartitionedCall if self.must_run else tf.raw_ops.PartitionedCall
        *results, done = call(
            args=[*given, *map(capture, self.captured)],
            Tout=[*(BITS if are_in(each) else each.dtype for each in self.fetches), DONE],
            f=self.name,
            config_proto=call_options(),
        )
        for index, fetched in enumerate(self.fetches):
            if are_in(fetched):
                results[index] = as_integers(results[index])
            results[index].set_shape(fetched.shape)
        return Called(results, done)


def _capture(outer: Any) -> tf.Tensor:
    """What stands for a tensor from outside in the graph that is being built."""
    return tf.compat.v1.get_default_graph().capture(outer)


@dataclass(frozen=True)
class PieceMaker:
    """Makes functions of pieces of a graph.

    Attributes:
        stays_a_call: Whether they must not be copied into the step that calls them.
        device: Where they run; left open, nothing is done for GPUs.
        must_run: Whether they run even if nothing reads what they return or write.
        tells_kinds: Whether the names of their nodes begin with theirs. That is how a profile of
            a GPU, which knows nothing of calls, tells what a kernel is a part of.
    """

    stays_a_call: bool
    device: str = ""
    must_run: bool = False
    tells_kinds: bool = False

    def __call__(self, graph: GraphOps, piece: Piece, name: str) -> PieceFunction:
        """Makes one of a piece; its name begins with `name`."""
        content, integers = graph.needed_for(piece), DeviceIntegers(self.device)
        functions = tf.compat.v1.GraphDef()
        scope = f"{name}/" if self.tells_kinds else ""
        writer = _Writer(functions.library.function.add(), graph, integers, self.device, scope)
        writer.write(piece, content)
        definition = writer.definition
        definition.attr[NO_INLINE].b = self.stays_a_call
        definition.signature.name = f"{name}_{uuid.uuid4().hex}"
        with tf.init_scope():  # Where every graph finds it.
            tf.graph_util.import_graph_def(functions, name="")
        fetches = [graph.one_of(fetched) for fetched in piece.fetches]
        return PieceFunction(
            definition.signature.name, piece.feeds, content.outer, fetches, integers, self.must_run
        )


@dataclass(frozen=True, eq=False)
class _Writer:
    """Writes a piece down as a function definition.

    Attributes:
        definition: What is written.
        graph: The graph that the piece is of.
        integers: Knows which tensors are integers on the device.
        device: Where the function runs.
        scope: What the names of nodes begin with.
    """

    definition: Any
    graph: GraphOps
    integers: DeviceIntegers
    device: str
    scope: str

    @functools.cached_property
    def _conversions(self) -> Conversions:
        return Conversions(self.definition, self.device)

    def write(self, piece: Piece, content: PieceContent) -> None:
        self.definition.signature.is_stateful = True
        names = self._write_arguments([*piece.feeds, *content.inner])
        self._write_nodes(content.ops, names)
        for index, fetched in enumerate(piece.fetches):
            self._write_result(index, self.graph.one_of(fetched), names)
        self._write_done()

    def _write_arguments(self, arguments: Sequence[tf.Tensor]) -> dict[object, str]:
        """Returns the names that arguments have inside, by reference."""
        names: dict[object, str] = {}
        for index, tensor in enumerate(arguments):
            is_disguised, name = self.integers.are_in(tensor), f"argument_{index}"
            dtype = BITS if is_disguised else tensor.dtype
            self.definition.signature.input_arg.add(name=name, type=dtype.as_datatype_enum)
            describe_argument(self.definition.arg_attr[index].attr, tensor)
            if is_disguised:
                name = self._conversions.convert(f"integers_{index}", name, BITS, tf.int32)
            names[tensor.ref()] = name
        return names

    def _write_nodes(self, ops: Sequence[tf.Operation], names: dict[object, str]) -> None:
        """Writes down nodes as in the graph, but with other names for their edges."""
        inside = set(ops)
        for op in ops:
            node = self.definition.node_def.add()
            node.CopyFrom(self.graph.node_of(op))
            node.name = self.scope + op.name
            node.attr.pop(COLOCATION, None)  # May name ops that are elsewhere now.
            del node.input[:]
            read = self.graph.inputs_of(op)
            node.input.extend(names.get(tensor.ref()) or self._edge(tensor) for tensor in read)
            controls = [each for each in op.control_inputs if each in inside]
            node.input.extend(f"^{self.scope}{each.name}" for each in controls)
            disguise = self.integers.disguise_for(op)
            if disguise is not None:
                outputs = self._conversions.disguise(op, node, disguise)
                names.update((op.outputs[place].ref(), edge) for place, edge in outputs.items())
            # Ops that only read a variable, too: an assignment must wait for them.
            if op.op_def.is_stateful:
                self.definition.control_ret[node.name] = node.name
                self.definition.signature.control_output.append(node.name)

    def _write_result(self, index: int, tensor: tf.Tensor, names: dict[object, str]) -> None:
        name, edge = f"result_{index}", names.get(tensor.ref()) or self._edge(tensor)
        dtype = tensor.dtype
        if self.integers.are_in(tensor):
            dtype = BITS
            edge = self._conversions.convert(f"bits_{index}", edge, tf.int32, BITS)
        self.definition.signature.output_arg.add(name=name, type=dtype.as_datatype_enum)
        self.definition.ret[name] = edge

    def _write_done(self) -> None:
        """Writes down a last result, a constant: a call without any could not be waited for."""
        node = self.definition.node_def.add(name="done", op="Const")
        node.attr["dtype"].type = DONE.as_datatype_enum
        node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(0, DONE))
        self.definition.signature.output_arg.add(name="done", type=DONE.as_datatype_enum)
        self.definition.ret["done"] = "done:output:0"

    def _edge(self, tensor: tf.Tensor) -> str:
        return self.scope + _edge_name(tensor)


class WholeFunction:
    """A traced function as a single piece, called as the function itself is.

    Args:
        function: The concrete function.
        make: Makes a function of a piece.
        name: What the name of the piece begins with.
    """

    def __init__(self, function: Any, make: PieceMaker, name: str) -> None:
        graph = function.graph
        arguments = graph.inputs[: len(graph.inputs) - len(graph.captures)]
        piece = Piece(tuple(arguments), tuple(graph.outputs), tuple(graph.control_outputs))
        self._structure = function.structured_outputs
        self._call = make(GraphOps(graph), piece, name)

    def __call__(self, *tensors: Any) -> Any:
        flat = tf.nest.flatten(list(tensors), expand_composites=True)
        results = iter(self._call(flat).results)
        leaves = tf.nest.flatten(self._structure, expand_composites=True)
        packed = [None if leaf is None else next(results) for leaf in leaves]
        return tf.nest.pack_sequence_as(self._structure, packed, expand_composites=True)


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
