"""A stage that trains: its forward pass, and what follows from the gradients of its outputs.

Two kinds with the same methods. `TracedStage` is for steps that are traced, where every kind of op
is a function of its own, made once and called for each micro-batch. `TapedStage` is for
`run_eagerly`, where the layers' own Python runs under a tape.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from keras_mgpu.model.layer_calls import Value
from keras_mgpu.pipeline.stage.gradients import GradientSum, GradientVariables, add_gradients
from keras_mgpu.pipeline.stage.graph_cut import CutGraph, Piece, PieceFunction
from keras_mgpu.pipeline.stage.stage_function import StageFunction, StageOutputs
from keras_mgpu.pipeline.stage.stage_program import Leaf, StageProgram, float_leaves
from keras_mgpu.pipeline.stage.value_function import Trace
from keras_mgpu.pipeline.stage.xla import CompiledPiece, zeros_like_spec


@dataclass(frozen=True, eq=False)
class Arguments:
    """What a run of a stage starts from.

    Attributes:
        inputs: The values of `stage.inputs`.
        handed_in: The values of the weights that are read once a step.
        read_state: Gives the value a state variable has for this micro-batch.
    """

    inputs: list[Value]
    handed_in: list[tf.Tensor]
    read_state: Callable[[keras.Variable], tf.Tensor]


class TapedStage:
    """A stage whose gradients a tape finds, micro-batch by micro-batch.

    Args:
        function: The stage.
        weights: The weights to find gradients for.
        made: Numbers of the values that stages make, and so can have gradients.
    """

    def __init__(
        self,
        function: StageFunction,
        weights: Sequence[keras.Variable],
        made: Collection[int],
    ) -> None:
        self._function = function
        self._weights = weights
        self._made = made
        self._sums = GradientSum(weights)

    def begin(self) -> None:
        """Starts a step: nothing is summed yet."""
        self._sums = GradientSum(self._weights)

    def forward(self, arguments: Arguments, keep: bool) -> tuple[StageOutputs, Any, list[Any]]:
        """Runs the layers; returns also what the backward needs, or how to find it again."""
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            leaves = float_leaves(self._function.stage.inputs, arguments.inputs)
            sources = {leaf: x for leaf, x in leaves.items() if leaf[0] in self._made}
            weights = self._sources(arguments.handed_in)
            tape.watch([*sources.values(), *weights])
            outputs = self._function(**vars(arguments))
        return outputs, (tape, outputs, sources, weights) if keep else arguments, []

    def recompute(self, kept: Any) -> tuple[Any, list[Any]]:
        """Runs the layers again for what the backward needs."""
        return self.forward(kept, keep=True)[1], []

    def backward(
        self,
        kept: Any,
        cotangents: dict[Leaf, tf.Tensor],
        loss_gradients: Sequence[tf.Tensor],
        and_weights: bool,
    ) -> tuple[dict[Leaf, tf.Tensor], Any, list[Any]]:
        """Returns the gradients of the inputs, and what the gradients of the weights need."""
        tape, outputs, sources, weights = kept
        leaves = float_leaves(self._function.stage.outputs, outputs.values)
        targets = [*outputs.losses, *(leaves[leaf] for leaf in cotangents)]
        found = [None] * (len(sources) + len(weights))
        if targets:
            given = [*loss_gradients, *cotangents.values()]
            found = tape.gradient(targets, [*sources.values(), *weights], output_gradients=given)
        of_weights = found[len(sources) :]
        if and_weights:
            self.weight_gradients(of_weights)
        of_inputs = zip(sources, found)
        dense = {leaf: tf.convert_to_tensor(g) for leaf, g in of_inputs if g is not None}
        return dense, of_weights, []

    def weight_gradients(self, kept: Any) -> list[Any]:
        self._sums.add(kept)
        return []

    def gradients(self) -> list[Any]:
        """For each weight, the sum over micro-batches, or `None`."""
        return self._sums.total()

    def _sources(self, handed_in: Sequence[tf.Tensor]) -> list[Any]:
        given = {id(v): tensor for v, tensor in zip(self._function.handed_in, handed_in)}
        return [given.get(id(v), v.value) for v in self._weights]


class TracedStage:
    """A stage whose forward, backward and weight gradients are functions, each made once.

    Args:
        function: The stage.
        weights: The weights to find gradients for.
        made: Numbers of the values that stages make, and so can have gradients.
        num_micro_batches: How many a step has.
        stays_a_call: Whether its functions must not be copied into the step.
    """

    def __init__(
        self,
        function: StageFunction,
        weights: Sequence[keras.Variable],
        made: Collection[int],
        num_micro_batches: int,
        stays_a_call: bool,
    ) -> None:
        self._function = function
        self._weights = weights
        self._made = made
        self._stays_a_call = stays_a_call
        self._sums = GradientVariables(function.stage.device) if num_micro_batches > 1 else None
        self._programs: dict[int, StageProgram] = {}
        self._returned: list[list[Any]] = []
        self._config = b""

    def rehearse(
        self,
        arguments: Arguments,
        cotangents: Collection[Leaf],
        kinds: Collection[str],
        config: bytes,
    ) -> list[Leaf]:
        """Gets ready for gradients of these outputs; returns the inputs that will have one.

        Args:
            arguments: What a run of the stage starts from.
            cotangents: The outputs that will be given gradients.
            kinds: The kinds of ops that there will be.
            config: TensorFlow's options for calls, serialized.
        """
        self._config = config
        trace, _ = self._trace(arguments)
        program = self._programs.get(id(trace))
        if program is None or program.cotangents != set(cotangents):
            program = self._programs[id(trace)] = self._make_program(trace, cotangents, kinds)
        return program.inputs_with_gradients

    def begin(self) -> None:
        self._returned = []
        if self._sums is not None:
            self._sums.clear()

    def forward(self, arguments: Arguments, keep: bool) -> tuple[StageOutputs, Any, list[Any]]:
        trace, tensors = self._trace(arguments)
        program = self._programs[id(trace)]
        outputs, kept, op = program.forward(tensors, keep)
        return outputs, (program, kept), [op]

    def recompute(self, kept: Any) -> tuple[Any, list[Any]]:
        program, tensors = kept
        tensors, op = program.recompute(tensors)
        return (program, tensors), [op]

    def backward(
        self,
        kept: Any,
        cotangents: dict[Leaf, tf.Tensor],
        loss_gradients: Sequence[tf.Tensor],
        and_weights: bool,
    ) -> tuple[dict[Leaf, tf.Tensor], Any, list[Any]]:
        program, tensors = kept
        given = [*loss_gradients, *cotangents.values()]
        found, rest, op = program.backward(tensors, given, and_weights)
        if and_weights:
            self._returned.append(rest)
        return found, (program, rest), [op]

    def weight_gradients(self, kept: Any) -> list[Any]:
        program, tensors = kept
        returned, op = program.weight_gradients(tensors)
        self._returned.append(returned)
        return [op]

    def measure(self, num_samples: int, num_rounds: int) -> Any:
        """Seconds and bytes of a micro-batch, by the functions that run it."""
        program = next(reversed(self._programs.values()))
        return program.measure(lambda tensor: zeros_like_spec(tensor, num_samples), num_rounds)

    def gradients(self) -> list[Any]:
        totals = []
        for index, weight in enumerate(self._weights):
            parts = [returned[index] for returned in self._returned]
            parts.append(None if self._sums is None else self._sums.read(weight))
            totals.append(add_gradients([part for part in parts if part is not None]))
        return totals

    def _trace(self, arguments: Arguments) -> tuple[Trace, list[Any]]:
        return self._function.trace(**vars(arguments))

    def _make_program(
        self, trace: Trace, cotangents: Collection[Leaf], kinds: Collection[str]
    ) -> StageProgram:
        program = StageProgram(
            self._function, trace, self._weights, self._made, cotangents, self._sums
        )
        compiler = self._function.compiler
        if compiler is not None and compiler.is_on:
            program.make(kinds, self._compiled_piece)
            compiler.try_out(lambda: program.rehearse(kinds, compiler.zeros))
        if compiler is None or not compiler.is_on:
            program.make(kinds, self._plain_piece)
        return program

    def _plain_piece(self, graph: CutGraph, piece: Piece, name: str) -> PieceFunction:
        return PieceFunction(graph, piece, name, self._stays_a_call, self._config)

    def _compiled_piece(self, graph: CutGraph, piece: Piece, name: str) -> CompiledPiece:
        return CompiledPiece(graph, piece, name, self._config)
