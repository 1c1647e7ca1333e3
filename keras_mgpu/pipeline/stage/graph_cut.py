"""Decides which ops of a graph with gradients run when, and what is kept in between.

A pipeline runs a stage's forward pass, its backward pass and, in some schedules, the gradients of
its weights as three pieces of work with other work in between. TensorFlow's own gradient of a
function is one piece. So a stage's whole graph is built once, and each piece takes the ops it
needs. What one piece hands to another is known, and is as little as possible.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from keras_mgpu.internals.tf_functions import COLOCATION

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
class PieceContent:
    """What a function made of a piece consists of.

    Attributes:
        outer: Tensors from outside of the graph that it captures, such as handles of variables.
        inner: What stands for each of them inside.
        ops: Its ops, in the order of the graph.
    """

    outer: list[Any]
    inner: list[tf.Tensor]
    ops: list[tf.Operation]


@dataclass(frozen=True, eq=False, kw_only=True)
class TrainingGraph:
    """A graph that holds a forward pass and its gradients.

    Attributes:
        inputs: What the forward pass takes, variables left out.
        outputs: What it returns.
        cotangents: Placeholders for the gradients of outputs.
        input_gradients: What the backward pass returns.
        weight_gradients: What is left for the weights.
        must_run: Forward ops that matter for what they do, such as assertions.
        weights: Those of the inputs that every piece is given anyway.
    """

    inputs: Sequence[tf.Tensor]
    outputs: Sequence[tf.Tensor]
    cotangents: Sequence[tf.Tensor]
    input_gradients: Sequence[tf.Tensor]
    weight_gradients: Sequence[tf.Tensor]
    must_run: Sequence[tf.Operation] = ()
    weights: Sequence[tf.Tensor] = ()


@dataclass(frozen=True, eq=False)
class Kept:
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


def find_kept(ops: GraphOps, graph: TrainingGraph) -> Kept:
    """Decides which op belongs to which piece, and so what must be kept between them."""
    gradients = [*graph.input_gradients, *graph.weight_gradients]
    inputs = {tensor.op for tensor in graph.inputs}
    given = {tensor.op for tensor in graph.cotangents}
    repeatable = ops.repeatable(graph.weights)
    forward = ops.ancestors(graph.outputs, graph.must_run) | inputs
    forward |= _shapes_of_what_is_not_kept(ops, forward, repeatable, gradients)
    backward = ops.ancestors(graph.input_gradients, stop=forward) | given
    last = ops.ancestors(graph.weight_gradients, stop=forward | backward)
    for_backward = ops.read_by(backward, forward - repeatable, graph.input_gradients)
    for_weights = ops.read_by(last, (forward | backward) - repeatable, graph.weight_gradients)
    everything = {t.ref(): t for t in (*for_backward, *for_weights)}.values()
    return Kept(
        forward=tuple(t for t in everything if t.op in forward - inputs),
        backward=tuple(t for t in for_weights if t.op in backward - given),
        for_backward=for_backward,
        for_weights=for_weights,
    )


def _shapes_of_what_is_not_kept(
    ops: GraphOps,
    forward: set[tf.Operation],
    repeatable: set[tf.Operation],
    gradients: Sequence[tf.Tensor],
) -> set[tf.Operation]:
    """Ops of the backward that take the shape of something that nothing else there reads.

    They run in the forward, so that a shape is kept and not what it is the shape of.
    """
    backward = ops.ancestors(gradients, stop=forward)
    shapes = {op for op in backward if op.type in SHAPES}
    kept = {t.ref() for t in ops.read_by(backward - shapes, forward - repeatable, gradients)}
    return {
        op
        for op in shapes
        if all(t.op in forward and t.ref() not in kept for t in ops.inputs_of(op))
    }


class GraphOps:
    """The ops of a complete graph, those that compute the same taken for one.

    Args:
        graph: The graph.
    """

    def __init__(self, graph: tf.Graph) -> None:
        self.graph = graph
        self._ops = graph.get_operations()
        self._nodes = {node.name: node for node in graph.as_graph_def().node}
        self._pure = {op for op in self._ops if _is_pure(op)}
        self._twins = self._find_twins()

    def needed_for(self, piece: Piece) -> PieceContent:
        """What a function made of a piece consists of."""
        feeds = {tensor.ref() for tensor in piece.feeds}
        inner_ends = {inner.ref() for _, inner in self.graph.captures} - feeds
        ops = self.ancestors(piece.fetches, piece.also, until=feeds | inner_ends)
        read = {tensor.ref() for op in ops for tensor in self.inputs_of(op)}
        read.update(tensor.ref() for tensor in piece.fetches)
        used = [pair for pair in self.graph.captures if pair[1].ref() in inner_ends & read]
        return PieceContent(
            outer=[outer for outer, _ in used],
            inner=[inner for _, inner in used],
            ops=[op for op in self._ops if op in ops],
        )

    def inputs_of(self, op: tf.Operation) -> list[tf.Tensor]:
        return [self.one_of(tensor) for tensor in op.inputs]

    def one_of(self, tensor: tf.Tensor) -> tf.Tensor:
        """The tensor that stands for all that are computed in the same way."""
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

    def ancestors(
        self,
        tensors: Iterable[tf.Tensor],
        ops: Iterable[tf.Operation] = (),
        until: Collection[Any] = (),
        stop: Collection[tf.Operation] = (),
    ) -> set[tf.Operation]:
        """All ops that these need, not going past `until` tensors and `stop` ops."""
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

    def repeatable(self, weights: Sequence[tf.Tensor]) -> set[tf.Operation]:
        """Ops that give the same result anywhere in a step: of constants and of weights.

        They run in every piece that needs them, instead of being kept for each micro-batch: a
        weight cast to another precision would exist once for each of them.
        """
        found = {inner.op for _, inner in self.graph.captures} | {each.op for each in weights}
        for op in self._ops:
            if op in self._pure and all(tensor.op in found for tensor in op.inputs):
                found.add(op)
        return found

    def read_by(
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


def _is_pure(op: tf.Operation) -> bool:
    """Whether it only computes. Nothing assigns to a variable while a stage reads it."""
    is_stateless = not op.op_def.is_stateful and op.type != "Placeholder"
    return is_stateless or op.type == "ReadVariableOp"
