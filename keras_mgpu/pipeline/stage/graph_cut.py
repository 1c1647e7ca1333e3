"""Cuts a traced graph with its gradients into functions that run at different times.

A pipeline runs a stage's forward pass, its backward pass and, in some schedules, the gradients of
its weights as three pieces of work with other work in between. TensorFlow's own gradient of a
function is one piece. So here a stage's whole graph is built once, and each piece is a function
made of the ops it needs. What one piece hands to another is known, and as little as can be.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from keras_mgpu.internals.tf_functions import COLOCATION, NO_INLINE, describe_argument

SHAPES = ("Shape", "ShapeN", "Size", "Rank")


@dataclass(frozen=True, eq=False)
class Piece:
    """One function to be made of a graph.

    Attributes:
        feeds: Tensors of the graph that its arguments stand for.
        fetches: Tensors of the graph that it returns.
        also: Ops that run in it although nothing it returns needs them.
    """

    feeds: tuple[tf.Tensor, ...]
    fetches: tuple[tf.Tensor, ...]
    also: tuple[tf.Operation, ...] = ()


@dataclass(frozen=True, eq=False)
class Cut:
    """Which tensors pass from piece to piece.

    Attributes:
        forward: What the forward makes for the others; the graph's own inputs are not among it.
        backward: What the backward makes for the weight gradients.
        for_backward: What the backward takes: inputs of the graph, or made by the forward.
        for_weights: What the weight gradients take, from anywhere before.
    """

    forward: tuple[tf.Tensor, ...]
    backward: tuple[tf.Tensor, ...]
    for_backward: tuple[tf.Tensor, ...]
    for_weights: tuple[tf.Tensor, ...]


class CutGraph:
    """A graph that holds a forward pass and its gradients, for making functions of.

    Args:
        graph: The graph, complete.
    """

    def __init__(self, graph: tf.Graph) -> None:
        self.graph = graph
        self._ops = graph.get_operations()
        self._nodes = {node.name: node for node in graph.as_graph_def().node}
        self._pure = {op for op in self._ops if _is_pure(op)}
        self._twins = self._find_twins()

    def cut(
        self,
        inputs: Sequence[tf.Tensor],
        outputs: Sequence[tf.Tensor],
        cotangents: Sequence[tf.Tensor],
        input_gradients: Sequence[tf.Tensor],
        weight_gradients: Sequence[tf.Tensor],
        must_run: Sequence[tf.Operation] = (),
        weights: Sequence[tf.Tensor] = (),
    ) -> Cut:
        """Decides which op belongs where.

        Args:
            inputs: What the forward pass takes, variables left out.
            outputs: What it returns.
            cotangents: Placeholders for the gradients of outputs.
            input_gradients: What the backward pass returns.
            weight_gradients: What is left for the weights.
            must_run: Forward ops that matter for what they do, such as assertions.
            weights: Those of the inputs that every piece is given anyway.
        """
        repeatable = self._repeatable(weights)
        forward = self._ancestors(outputs, must_run) | {tensor.op for tensor in inputs}
        forward |= self._shapes_of_what_is_not_kept(
            forward, repeatable, [*input_gradients, *weight_gradients]
        )
        given = {tensor.op for tensor in cotangents}
        backward = self._ancestors(input_gradients, stop=forward) | given
        last = self._ancestors(weight_gradients, stop=forward | backward)
        for_backward = self._read(backward, forward - repeatable, input_gradients)
        for_weights = self._read(last, (forward | backward) - repeatable, weight_gradients)
        made = forward - {tensor.op for tensor in inputs}
        everything = {t.ref(): t for t in (*for_backward, *for_weights)}.values()
        return Cut(
            forward=tuple(t for t in everything if t.op in made),
            backward=tuple(t for t in for_weights if t.op in backward - given),
            for_backward=for_backward,
            for_weights=for_weights,
        )

    def needed(self, piece: Piece) -> tuple[list[tuple[Any, tf.Tensor]], list[tf.Operation]]:
        """The captured tensors, outside and inside the graph, and the ops that a piece needs."""
        feeds = {tensor.ref() for tensor in piece.feeds}
        captures = [(outer, inner) for outer, inner in self.graph.captures]
        inner_ends = {inner.ref() for _, inner in captures} - feeds
        ops = self._ancestors(piece.fetches, piece.also, until=feeds | inner_ends)
        read = {tensor.ref() for op in ops for tensor in self.inputs_of(op)}
        read.update(tensor.ref() for tensor in piece.fetches)
        used = [pair for pair in captures if pair[1].ref() in inner_ends & read]
        return used, [op for op in self._ops if op in ops]

    def inputs_of(self, op: tf.Operation) -> list[tf.Tensor]:
        return [self.one_of(tensor) for tensor in op.inputs]

    def one_of(self, tensor: tf.Tensor) -> tf.Tensor:
        """The tensor that stands for all that are computed alike."""
        twin = self._twins.get(tensor.op)
        return tensor if twin is None else twin.outputs[tensor.value_index]

    def node_of(self, op: tf.Operation) -> Any:
        return self._nodes[op.name]

    def _find_twins(self) -> dict[tf.Operation, tf.Operation]:
        """For ops that do what an earlier one has done, that one: gradients are full of them."""
        self._twins = {}
        first: dict[Any, tf.Operation] = {}
        for op in self._ops:
            if op in self._pure and not op.control_inputs:
                attributes = {k: v for k, v in self._nodes[op.name].attr.items() if k != COLOCATION}
                values = sorted((k, v.SerializeToString()) for k, v in attributes.items())
                read = tuple(tensor.ref() for tensor in self.inputs_of(op))
                same = first.setdefault((op.type, op.device, tuple(values), read), op)
                if same is not op:
                    self._twins[op] = same
        return self._twins

    def _ancestors(
        self,
        tensors: Iterable[tf.Tensor],
        ops: Iterable[tf.Operation] = (),
        until: Collection[Any] = (),
        stop: Collection[tf.Operation] = (),
    ) -> set[tf.Operation]:
        """All ops that these need, without those behind `until` tensors and `stop` ops."""
        found: set[tf.Operation] = set()
        wanted = map(self.one_of, tensors)
        waiting = [tensor.op for tensor in wanted if tensor.ref() not in until]
        waiting += ops
        while waiting:
            op = waiting.pop()
            if op in found or op in stop:
                continue
            found.add(op)
            waiting += [tensor.op for tensor in self.inputs_of(op) if tensor.ref() not in until]
            waiting += op.control_inputs
        return found

    def _repeatable(self, weights: Sequence[tf.Tensor]) -> set[tf.Operation]:
        """Ops that give the same result anywhere in a step: of constants and of weights.

        They run in every piece that needs them, instead of being kept for each micro-batch: a
        weight cast to another precision would be there once for each of them.
        """
        found = {inner.op for _, inner in self.graph.captures} | {each.op for each in weights}
        for op in self._ops:
            if op in self._pure and all(tensor.op in found for tensor in op.inputs):
                found.add(op)
        return found

    def _shapes_of_what_is_not_kept(
        self,
        forward: set[tf.Operation],
        repeatable: set[tf.Operation],
        gradients: Sequence[tf.Tensor],
    ) -> set[tf.Operation]:
        """Ops of the backward that take the shape of something that nothing else there reads.

        They run in the forward, so that a shape is kept and not what it is the shape of.
        """
        backward = self._ancestors(gradients, stop=forward)
        shapes = {op for op in backward if op.type in SHAPES}
        kept = {t.ref() for t in self._read(backward - shapes, forward - repeatable, gradients)}
        return {
            op
            for op in shapes
            if all(t.op in forward and t.ref() not in kept for t in self.inputs_of(op))
        }

    def _read(
        self,
        ops: set[tf.Operation],
        made: set[tf.Operation],
        fetches: Sequence[tf.Tensor],
    ) -> tuple[tf.Tensor, ...]:
        """Tensors of `made` ops that `ops` read, or that are fetched as they are."""
        ordered = [op for op in self._ops if op in ops]
        read = [tensor for op in ordered for tensor in self.inputs_of(op)]
        read += map(self.one_of, fetches)
        return tuple({t.ref(): t for t in read if t.op in made}.values())


class PieceFunction:
    """A piece of a graph as a function that steps can call.

    It is written down as TensorFlow's own function definition, out of the nodes that are there
    already. To trace it anew would take longer than all the rest of getting ready.

    Args:
        graph: The graph.
        piece: What to take and to return.
        name: What it is called.
        stays_a_call: Whether it must not be copied into the step. TensorFlow would copy it for
            every call, and optimize each copy: with many micro-batches that is most of the time
            to the first step, and hundreds of megabytes.
        config: TensorFlow's options for the call, serialized.
    """

    def __init__(
        self, graph: CutGraph, piece: Piece, name: str, stays_a_call: bool, config: bytes
    ) -> None:
        captured, ops = graph.needed(piece)
        self._captured = [outer for outer, _ in captured]
        self._fetches = piece.fetches
        self._config = config
        functions = tf.compat.v1.GraphDef()
        definition = functions.library.function.add()
        _define(definition, graph, piece, [inner for _, inner in captured], ops)
        definition.attr[NO_INLINE].b = stays_a_call
        definition.signature.name = self._name = f"{name}_{uuid.uuid4().hex}"
        with tf.init_scope():  # Where every graph finds it.
            tf.graph_util.import_graph_def(functions, name="")

    def __call__(self, tensors: Sequence[tf.Tensor]) -> tuple[list[tf.Tensor], tf.Operation]:
        """Calls it in the graph that is being built; returns what it returns, and the op."""
        here = tf.compat.v1.get_default_graph()
        result = tf.raw_ops.StatefulPartitionedCall(
            args=[*tensors, *(here.capture(outer) for outer in self._captured)],
            Tout=[tensor.dtype for tensor in self._fetches],
            f=self._name,
            config_proto=self._config,
        )
        if isinstance(result, tf.Operation):
            return [], result
        for tensor, fetched in zip(result, self._fetches):
            tensor.set_shape(fetched.shape)
        return list(result), result[0].op


def _define(
    definition: Any,
    graph: CutGraph,
    piece: Piece,
    captured: Sequence[tf.Tensor],
    ops: Sequence[tf.Operation],
) -> None:
    """Writes down a function: nodes as in the graph, but with other names for its edges."""
    arguments, inside = [*piece.feeds, *captured], set(ops)
    names = {tensor.ref(): f"argument_{index}" for index, tensor in enumerate(arguments)}
    signature = definition.signature
    signature.is_stateful = True
    for index, tensor in enumerate(arguments):
        dtype = tensor.dtype.as_datatype_enum
        signature.input_arg.add(name=names[tensor.ref()], type=dtype)
        describe_argument(definition.arg_attr[index].attr, tensor)
    for op in ops:
        node = definition.node_def.add()
        node.CopyFrom(graph.node_of(op))
        node.attr.pop(COLOCATION, None)  # May name ops that are elsewhere now.
        del node.input[:]
        read = graph.inputs_of(op)
        node.input.extend(names.get(tensor.ref()) or _edge_name(tensor) for tensor in read)
        node.input.extend(f"^{each.name}" for each in op.control_inputs if each in inside)
        # Also what only reads a variable: whoever assigns to it must wait for that.
        if op.op_def.is_stateful:
            definition.control_ret[op.name] = op.name
            signature.control_output.append(op.name)
    for index, fetched in enumerate(piece.fetches):
        tensor, name = graph.one_of(fetched), f"result_{index}"
        signature.output_arg.add(name=name, type=tensor.dtype.as_datatype_enum)
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


def _is_pure(op: tf.Operation) -> bool:
    """Whether it only computes. Nothing assigns to a variable while a stage reads it."""
    is_stateless = not op.op_def.is_stateful and op.type != "Placeholder"
    return is_stateless or op.type == "ReadVariableOp"
