"""A stage that trains in traced steps: a function for each kind of op, made once.

What is called here while a step is traced becomes part of it; nothing is computed yet.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import keras
import tensorflow as tf

from keras_mgpu.internals.identity import IdentityMap
from keras_mgpu.pipeline.stage.gradients import Gradient, GradientVariables, add_gradients
from keras_mgpu.pipeline.stage.measuring import call_once, run_each
from keras_mgpu.pipeline.stage.piece_function import (
    Called,
    PieceMaker,
    Waitable,
)
from keras_mgpu.pipeline.stage.sending import sent_first
from keras_mgpu.pipeline.stage.stage_function import StageFunction, StageInputs, StageTrace
from keras_mgpu.pipeline.stage.stage_program import (
    Leaf,
    MakePiece,
    StageProgram,
    complete_graph,
    make_program,
)
from keras_mgpu.pipeline.stage.training_stage import Backward, StepsAhead
from keras_mgpu.pipeline.stage.xla import CompiledPieceMaker

# For tensors of the traced graph, by reference, the tensors that stand for them in a step.
Tensors = dict[object, tf.Tensor]


class TracedStage:
    """A stage whose forward, backward and weight gradients are functions, each made once.

    Args:
        function: The stage.
        weights: The weights to find gradients for.
        made: Numbers of the values that stages make, and so can have gradients.
        kinds: The kinds of ops that the schedule has for it.
        num_micro_batches: How many a step has.
        stays_a_call: Whether its functions must not be copied into the step.
    """

    def __init__(
        self,
        function: StageFunction,
        weights: Sequence[keras.Variable],
        made: Collection[int],
        kinds: Collection[str],
        *,
        num_micro_batches: int,
        stays_a_call: bool,
    ) -> None:
        self._function = function
        self._weights = weights
        self._made = made
        self._kinds = kinds
        self._stays_a_call = stays_a_call
        stage, is_summed = function.stage, num_micro_batches > 1
        self._sums = GradientVariables(stage.device, stage.name) if is_summed else None
        self._programs: IdentityMap[StageTrace, StageProgram] = IdentityMap()
        self._prepared: StageProgram | None = None
        self._returned: list[list[Gradient]] = []
        self._added: list[tf.Tensor] = []

    @property
    def program(self) -> StageProgram:
        """The program that was prepared last."""
        if self._prepared is None:
            raise ValueError("Call `prepare` first.")
        return self._prepared

    def prepare(self, steps: StepsAhead) -> Collection[Leaf]:
        trace, _ = self._function.trace(steps.inputs)
        program = self._programs.get(trace)
        if program is None or program.cotangents != frozenset(steps.cotangents):
            program = self._programs[trace] = self._make_program(trace, steps)
        elif self._sums is not None:
            self._sums.take_memory()
        self._prepared = program
        return list(program.graph.of_inputs)

    def release(self) -> None:
        if self._sums is not None:
            self._sums.release()

    def begin(self) -> None:
        self._returned, self._added = [], []
        if self._sums is not None:
            self._sums.clear()

    def forward(self, inputs: StageInputs) -> TracedRun:
        trace, tensors = self._function.trace(inputs)
        return TracedRun(self._programs[trace], tensors, self._returned, self._added)

    def gradients(self) -> list[Gradient]:
        summed: IdentityMap[keras.Variable, tf.Tensor] = IdentityMap()
        if self._sums is not None:
            summed = self._sums.read(self._added)
        totals = []
        for index, weight in enumerate(self._weights):
            parts = [returned[index] for returned in self._returned]
            totals.append(add_gradients([*parts, summed.get(weight)]))
        return totals

    def _make_program(self, trace: StageTrace, steps: StepsAhead) -> StageProgram:
        graph = complete_graph(
            trace,
            self._function.stage,
            self._weights,
            made=self._made,
            cotangents=steps.cotangents,
            sums=self._sums,
        )
        if self._sums is not None:
            self._sums.take_memory()

        def program_of(make_piece: MakePiece) -> StageProgram:
            return make_program(graph, steps.cotangents, self._kinds, make_piece)

        compiler = self._function.compiler
        if compiler is not None and compiler.is_on:
            program = program_of(CompiledPieceMaker())
            compiler.try_out(lambda: run_each(program, compiler.zeros, call_once))
            if compiler.is_on:
                return program
        device = self._function.stage.device
        return program_of(PieceMaker(self._stays_a_call, device, tells_kinds=True))


class TracedRun:
    """A micro-batch in a stage, as calls of its program's functions.

    Args:
        program: The stage's functions.
        tensors: What the stage takes.
        returned: Takes the gradients of weights that the functions return.
        added: Takes what is there once others are added to their sums.
    """

    def __init__(
        self,
        program: StageProgram,
        tensors: Sequence[object],
        returned: list[list[Gradient]],
        added: list[tf.Tensor],
    ) -> None:
        self._program = program
        self._returned = returned
        self._added = added
        graph = program.graph
        flat = tf.nest.flatten(list(tensors), expand_composites=True)
        self._tensors: Tensors = _by_reference(graph.arguments, flat)
        called = self._call("forward")
        results, kept = called.results[: len(graph.outputs)], called.results[len(graph.outputs) :]
        if not program.recomputes:
            self._tensors |= _by_reference(program.kept.forward, kept)
        sent, self.ran = sent_first(results, called.done)
        self.outputs = graph.named(sent)

    def recompute(self) -> list[Waitable]:
        called = self._call("recompute")
        self._tensors |= _by_reference(self._program.kept.forward, called.results)
        return [called.done]

    def backward(
        self, cotangents: Mapping[Leaf, tf.Tensor], loss_gradients: Sequence[tf.Tensor]
    ) -> Backward:
        program, graph = self._program, self._program.graph
        self._tensors |= _by_reference(graph.given, [*loss_gradients, *cotangents.values()])
        called = self._call("backward")
        rest = called.results[len(graph.of_inputs) :]
        if program.splits_weights:
            self._tensors |= _by_reference(program.kept.backward, rest)
        else:
            self._take_weight_gradients(rest, called.done)
        sent, ran = sent_first(called.results[: len(graph.of_inputs)], called.done)
        return Backward(dict(zip(graph.of_inputs, sent)), ran)

    def weight_gradients(self) -> list[Waitable]:
        called = self._call("weights")
        self._take_weight_gradients(called.results, called.done)
        return [called.done]

    def _take_weight_gradients(self, tensors: Sequence[tf.Tensor], done: tf.Tensor) -> None:
        self._returned.append(self._program.graph.weight_gradients(tensors))
        self._added.append(done)

    def _call(self, name: str) -> Called:
        feeds = self._program.pieces[name].feeds
        return self._program.functions[name]([self._tensors[tensor.ref()] for tensor in feeds])


def _by_reference(graph_tensors: Sequence[tf.Tensor], tensors: Sequence[tf.Tensor]) -> Tensors:
    return {of_graph.ref(): tensor for of_graph, tensor in zip(graph_tensors, tensors)}
