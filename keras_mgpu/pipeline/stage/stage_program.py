"""A traced stage with its gradients, as one function for each kind of op.

A stage is traced once, its gradients are built once, and the graph is cut into the pieces that a
schedule runs one by one. So the time to the first step hardly depends on the number of
micro-batches, and what a micro-batch keeps between two pieces is known exactly.

    trace ─► differentiate ─► sum_in_place ─► cut_into_pieces ─► define or compile each piece
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import keras
import tensorflow as tf
from keras import tree

from keras_mgpu.blueprint.schedule import KIND_WORDS, piece_name, stage_scope
from keras_mgpu.internals.identity import IdentityMap
from keras_mgpu.model.layer_calls import Value
from keras_mgpu.model.stages import Stage
from keras_mgpu.pipeline.stage.gradients import Gradient, GradientVariables
from keras_mgpu.pipeline.stage.graph_cut import GraphOps, Kept, Piece, TrainingGraph, find_kept
from keras_mgpu.pipeline.stage.piece_function import PieceCall
from keras_mgpu.pipeline.stage.stage_function import StageOutputs, StageTensors, StageTrace

# A leaf of a value that flows between stages: the value's number, and the leaf's place in it.
Leaf = tuple[int, int]
# Makes a function of a piece, given the graph and the name that the function should have.
MakePiece = Callable[[GraphOps, Piece, str], PieceCall]


def float_leaves(numbers: Sequence[int], values: Sequence[Value]) -> dict[Leaf, tf.Tensor]:
    """The leaves of values that can have a gradient."""
    return {
        (number, place): leaf
        for number, value in zip(numbers, values)
        for place, leaf in enumerate(tree.flatten(value))
        if isinstance(leaf, tf.Tensor) and (leaf.dtype.is_floating or leaf.dtype.is_complex)
    }


@dataclass(frozen=True, eq=False)
class StageGraph:
    """The graph of a traced stage, and what stands where in it.

    Attributes:
        stage: The stage.
        trace: Its trace.
        weights: The weights to find gradients for.
        targets: The losses and outputs that are given gradients.
        given: A placeholder for the gradient of each target.
        of_inputs: Gradients of the inputs that other stages made.
        of_weights: The gradient of each weight; `None` where there is none, or it is summed.
        summing: Ops that add gradients of weights to their sums.
    """

    stage: Stage
    trace: StageTrace
    weights: Sequence[keras.Variable]
    targets: Sequence[tf.Tensor] = ()
    given: tuple[tf.Tensor, ...] = ()
    of_inputs: Mapping[Leaf, tf.Tensor] = field(default_factory=dict)
    of_weights: Sequence[Gradient] = ()
    summing: tuple[tf.Operation, ...] = ()

    @property
    def graph(self) -> tf.Graph:
        return self.trace.function.graph

    @property
    def outputs(self) -> tuple[tf.Tensor, ...]:
        return tuple(self.graph.outputs)

    @property
    def arguments(self) -> tuple[tf.Tensor, ...]:
        """What the stage takes, variables left out."""
        return tuple(self.graph.inputs[: len(self.graph.inputs) - len(self.graph.captures)])

    @property
    def handed_in(self) -> IdentityMap[keras.Variable, tf.Tensor]:
        """For each weight that is handed in, the argument that stands for it."""
        return IdentityMap(zip(self.trace.handed_in, self._structured_arguments()[1]))

    @property
    def input_values(self) -> list[Value]:
        """The values that the stage was traced with."""
        return self.trace.layout.unpack(self._structured_arguments()[0])

    def named(self, tensors: Sequence[tf.Tensor]) -> StageOutputs:
        """Tensors in the place of `outputs`, by their names."""
        structure = self.trace.function.structured_outputs
        structured = tf.nest.pack_sequence_as(structure, list(tensors), expand_composites=True)
        return StageTensors(*structured).named(self.trace.notes)

    def weight_gradients(self, tensors: Sequence[tf.Tensor]) -> list[Gradient]:
        """Puts the parts of gradients that are returned together again, one for each weight."""
        remaining = iter(tensors)
        gradients: list[Gradient] = []
        for weight, gradient in zip(self.weights, self.of_weights):
            if isinstance(gradient, tf.IndexedSlices):
                values, indices = next(remaining), next(remaining)
                gradients.append(tf.IndexedSlices(values, indices, tf.constant([*weight.shape])))
            else:
                gradients.append(None if gradient is None else next(remaining))
        return gradients

    @contextlib.contextmanager
    def adding(self, name: str) -> Iterator[None]:
        """Ops that are made inside belong to the stage."""
        scope = f"{stage_scope(self.stage.index)}/{name}"
        with self.graph.as_default(), tf.device(self.stage.device), tf.name_scope(scope):
            yield

    def _structured_arguments(self) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        """The tensors that stand for values, and all others."""
        signature = self.trace.function.structured_input_signature[0]
        tensors = tf.nest.pack_sequence_as(
            list(signature), list(self.arguments), expand_composites=True
        )
        num_tensors = self.trace.layout.num_tensors
        return tensors[:num_tensors], tensors[num_tensors:]


def differentiate(
    graph: StageGraph, made: Collection[int], cotangents: Collection[Leaf]
) -> StageGraph:
    """Adds the gradients to the traced graph.

    Args:
        graph: The stage, as traced.
        made: Numbers of the values that stages make, and so can have gradients.
        cotangents: Which of its outputs will be given gradients.
    """
    outputs = graph.named(graph.outputs)
    leaves = float_leaves(graph.stage.outputs, outputs.values)
    targets = [*outputs.losses, *(leaves[leaf] for leaf in leaves if leaf in cotangents)]
    of_values = float_leaves(graph.stage.inputs, graph.input_values)
    inputs = {leaf: tensor for leaf, tensor in of_values.items() if leaf[0] in made}
    with graph.adding("gradients"):
        given = tuple(tf.compat.v1.placeholder(each.dtype, each.shape) for each in targets)
        sources = [*inputs.values(), *_weight_sources(graph)]
        found = _gradients(targets, sources, given)
        of_inputs = {
            leaf: tf.convert_to_tensor(g) for leaf, g in zip(inputs, found) if g is not None
        }
    return replace(
        graph,
        targets=targets,
        given=given,
        of_inputs=of_inputs,
        of_weights=found[len(inputs) :],
    )


def sum_in_place(graph: StageGraph, sums: GradientVariables | None) -> StageGraph:
    """Adds the ops that sum dense gradients; those are not returned any more.

    Args:
        graph: The stage, differentiated.
        sums: Where to sum the gradients of the weights, or `None` to return them.
    """
    if sums is None:
        return graph
    summing: list[tf.Operation] = []
    left: list[Gradient] = []
    with graph.adding("sums"):
        for weight, gradient in zip(graph.weights, graph.of_weights):
            is_summed = gradient is not None and not isinstance(gradient, tf.IndexedSlices)
            if is_summed:
                summing.append(sums.add(weight, gradient))
            left.append(None if is_summed else gradient)
    return replace(graph, of_weights=left, summing=tuple(summing))


def cut_into_pieces(graph: StageGraph, kept: Kept, kinds: Collection[str]) -> dict[str, Piece]:
    """What each kind of op takes and returns, by the kind's word.

    Args:
        graph: The stage, complete.
        kept: What passes between the pieces.
        kinds: The kinds of ops that a schedule has for this stage.
    """
    return _forward_pieces(graph, kept, kinds) | _backward_pieces(graph, kept, kinds)


def _forward_pieces(graph: StageGraph, kept: Kept, kinds: Collection[str]) -> dict[str, Piece]:
    arguments, outputs = graph.arguments, graph.outputs
    must_run = tuple(graph.graph.control_outputs)
    if "R" not in kinds:
        return {"forward": Piece(arguments, outputs + kept.forward, must_run)}
    return {
        "forward": Piece(arguments, outputs, must_run),
        "recompute": Piece(arguments, kept.forward),
    }


def _backward_pieces(graph: StageGraph, kept: Kept, kinds: Collection[str]) -> dict[str, Piece]:
    given, handed_in = graph.given, tuple(graph.handed_in.values())
    of_inputs, of_weights = tuple(graph.of_inputs.values()), _components(graph.of_weights)
    made_here = {tensor.ref() for tensor in (*kept.backward, *given)}
    if "W" not in kinds:
        both = {tensor.ref(): tensor for tensor in (*kept.for_backward, *kept.for_weights)}
        feeds = tuple(tensor for key, tensor in both.items() if key not in made_here)
        feeds += given + handed_in
        return {"backward": Piece(feeds, of_inputs + of_weights, graph.summing)}
    feeds = tuple(tensor for tensor in kept.for_backward if tensor.ref() not in made_here)
    return {
        "backward": Piece(feeds + given + handed_in, of_inputs + kept.backward),
        "weights": Piece(kept.for_weights + handed_in, of_weights, graph.summing),
    }


@dataclass(frozen=True, eq=False)
class StageProgram:
    """The functions of a traced stage.

    Attributes:
        graph: The graph they are made of.
        cotangents: Which of its outputs are given gradients.
        kept: What passes between the functions.
        pieces: What each function takes and returns, by the word for its kind of op.
        functions: The functions.
    """

    graph: StageGraph
    cotangents: frozenset[Leaf]
    kept: Kept
    pieces: Mapping[str, Piece]
    functions: Mapping[str, PieceCall]

    @property
    def recomputes(self) -> bool:
        return KIND_WORDS["R"] in self.functions

    @property
    def splits_weights(self) -> bool:
        """Whether gradients of weights are a function of their own."""
        return KIND_WORDS["W"] in self.functions


def complete_graph(
    trace: StageTrace,
    stage: Stage,
    weights: Sequence[keras.Variable],
    *,
    made: Collection[int],
    cotangents: Collection[Leaf],
    sums: GradientVariables | None,
) -> StageGraph:
    """A traced stage with its gradients and their sums, ready to be cut."""
    graph = differentiate(StageGraph(stage, trace, weights), made, cotangents)
    return sum_in_place(graph, sums)


def make_program(
    graph: StageGraph, cotangents: Collection[Leaf], kinds: Collection[str], make_piece: MakePiece
) -> StageProgram:
    """Cuts a stage's graph into functions.

    Args:
        graph: The stage, complete.
        cotangents: Which of its outputs are given gradients.
        kinds: The kinds of ops that a schedule has for this stage.
        make_piece: Makes a function of a piece.
    """
    ops = GraphOps(graph.graph)
    training_graph = TrainingGraph(
        inputs=graph.arguments,
        outputs=graph.outputs,
        cotangents=graph.given,
        input_gradients=list(graph.of_inputs.values()),
        weight_gradients=[*_components(graph.of_weights), *(op.inputs[1] for op in graph.summing)],
        must_run=graph.graph.control_outputs,
        weights=list(graph.handed_in.values()),
    )
    kept = find_kept(ops, training_graph)
    pieces = cut_into_pieces(graph, kept, kinds)
    index = graph.stage.index
    functions = {
        name: make_piece(ops, piece, piece_name(index, name)) for name, piece in pieces.items()
    }
    return StageProgram(graph, frozenset(cotangents), kept, pieces, functions)


def _gradients(
    targets: Sequence[tf.Tensor],
    sources: Sequence[tf.Tensor | None],
    given: Sequence[tf.Tensor],
) -> list[Gradient]:
    """The gradient of each source, `None` for one that is not there."""
    there = [source for source in sources if source is not None]
    if not targets or not there:
        return [None for _ in sources]
    found = iter(tf.gradients(targets, there, grad_ys=list(given)))
    return [None if source is None else next(found) for source in sources]


def _weight_sources(graph: StageGraph) -> list[tf.Tensor | None]:
    """What stands for each weight in the graph: `None` for one that is not read."""
    captured: IdentityMap[tf.Tensor, tf.Tensor] = IdentityMap(graph.graph.captures)
    handed_in = graph.handed_in
    return [handed_in.get(v, captured.get(v.value.handle)) for v in graph.weights]


def _components(gradients: Sequence[Gradient]) -> tuple[tf.Tensor, ...]:
    """The tensors that make up gradients, sparse ones among them."""
    tensors: list[tf.Tensor] = []
    for gradient in gradients:
        if isinstance(gradient, tf.IndexedSlices):
            tensors += [gradient.values, gradient.indices]
        elif gradient is not None:
            tensors.append(gradient)
    return tuple(tensors)
