"""One stage as a pure function: tensors in, tensors out.

Keras layers assign to variables while they run: statistics, seeds, metrics. Called once per
micro-batch, in an order that a schedule chooses, that would give other numbers than one call with
the whole batch. Here every assignment is caught and returned as a value. `state_flow.py` decides
what happens to it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import keras
import tensorflow as tf
from keras import tree

from keras_mgpu.blueprint.schedule import stage_scope
from keras_mgpu.internals.identity import IdentityMap, IdentitySet
from keras_mgpu.internals.keras_masks import Layout, get_mask, pack, specs_of
from keras_mgpu.internals.keras_state import AssignmentScope
from keras_mgpu.internals.tf_functions import KEEP_AS_CALL
from keras_mgpu.model.layer_calls import LayerCall, Value
from keras_mgpu.model.stages import Stage
from keras_mgpu.pipeline.micro_batches import COUNT
from keras_mgpu.pipeline.stage import stage_errors
from keras_mgpu.pipeline.stage.piece_function import PieceMaker, WholeFunction
from keras_mgpu.pipeline.stage.xla import StageCompiler


class StateReader(Protocol):
    """Knows the value of every variable that layers assign, as one micro-batch should see it."""

    def read(self, variable: keras.Variable) -> tf.Tensor:
        """The value this micro-batch starts from."""


@dataclass(frozen=True, eq=False)
class StageInputs:
    """What a run of a stage starts from.

    Attributes:
        values: The values of `stage.inputs`.
        handed_in: The values of the weights that are read once per step.
        state: Gives the value of each state variable.
    """

    values: list[Value]
    handed_in: list[tf.Tensor]
    state: StateReader


@dataclass(frozen=True, eq=False)
class LossCall:
    """The call of a layer that added a loss.

    Attributes:
        call: The call.
        read: The values it was given, or symbolic ones of their form.
        place: Which of the losses that the call added this one is, from 0.
    """

    call: LayerCall
    read: list[Value]
    place: int


@dataclass(frozen=True, eq=False)
class StageOutputs:
    """What one run of a stage gave.

    Attributes:
        values: The stage's output values, in the order of `stage.outputs`.
        losses: What its layers gave to `add_loss`, activity regularizers among them.
        loss_calls: For each loss, the call that added it.
        state: Each variable its layers assigned, and the new value.
        valid: For each batch normalization that saw a mask, the number of valid places.
    """

    values: list[Value]
    losses: list[tf.Tensor]
    loss_calls: list[LossCall]
    state: IdentityMap[keras.Variable, tf.Tensor]
    valid: IdentityMap[keras.Layer, tf.Tensor]

    @property
    def tensors(self) -> list[tf.Tensor]:
        """All tensors among values and losses."""
        leaves = [*tree.flatten(self.values), *self.losses]
        return [leaf for leaf in leaves if isinstance(leaf, tf.Tensor)]


@dataclass(frozen=True, eq=False)
class StageNotes:
    """What only running the layers can tell; the same for all runs of one trace.

    Attributes:
        layout: How the output values lie flat.
        loss_calls: The calls that added losses.
        assigned: The variables that layers assigned.
        masked_norms: The batch normalizations that saw a mask.
    """

    layout: Layout
    loss_calls: list[LossCall]
    assigned: list[keras.Variable]
    masked_norms: list[keras.Layer]


class StageTensors(NamedTuple):
    """What a run returns, as `tf.function` can return it."""

    outputs: list[tf.Tensor]
    losses: list[tf.Tensor]
    state: list[tf.Tensor]
    valid: list[tf.Tensor]

    def named(self, notes: StageNotes) -> StageOutputs:
        """The same by names, with what the trace noted."""
        return StageOutputs(
            values=notes.layout.unpack(self.outputs),
            losses=list(self.losses),
            loss_calls=notes.loss_calls,
            state=IdentityMap(zip(notes.assigned, self.state)),
            valid=IdentityMap(zip(notes.masked_norms, self.valid)),
        )


@dataclass(frozen=True, eq=False)
class StageTrace:
    """A stage traced for inputs of one form.

    Attributes:
        function: The concrete function, over flat tensors: values, weights handed in, state.
        runs: What is called to run it: the same function, made for steps.
        notes: What was noted while it was traced.
        layout: How the input values lie flat.
        handed_in: The weights whose values follow the inputs.
    """

    function: Any
    runs: Callable[..., Any]
    notes: StageNotes
    layout: Layout
    handed_in: list[keras.Variable]

    def call(self, tensors: Sequence[Any]) -> StageOutputs:
        """Runs all of it at once."""
        return StageTensors(*self.runs(*tensors)).named(self.notes)


class StageFunction:
    """Runs a stage's layers without side effects, traced once for all micro-batches.

    Args:
        stage: The stage to run.
        training: Whether its layers run in training mode.
        eager: Run the layers' Python anew each time, as `run_eagerly` asks for.
        foreign: Weights of all stages, which its layers must not read unless they own them.
        compiler: Has inference compiled, where that works. Training compiles what a trace is cut
            into instead.
        stays_a_call: Whether the function must not be copied into the step.
    """

    def __init__(
        self,
        stage: Stage,
        *,
        training: bool,
        eager: bool = False,
        foreign: Sequence[keras.Variable] = (),
        compiler: StageCompiler | None = None,
        stays_a_call: bool = False,
    ) -> None:
        self.stage = stage
        self.compiler = compiler
        self._training = training
        self._eager = eager
        self._foreign = foreign
        self._stays_a_call = stays_a_call
        self._tables = stage.tables if compiler is None else []
        self._state = IdentitySet(stage.state)
        self._traces: dict[Hashable, StageTrace] = {}
        self._layer = ""  # The one that is running.

    @property
    def handed_in(self) -> list[keras.Variable]:
        """Weights that are handed in as tensors, so that they are read once per step.

        Those that live with another stage; and tables, which TensorFlow copies whenever they are
        read if an optimizer writes to single rows of them. XLA reads variables in its own way.
        """
        return [v for v in (*self.stage.borrowed, *self._tables) if v not in self._state]

    def __call__(self, inputs: StageInputs) -> StageOutputs:
        """Runs the stage on one micro-batch."""
        if not self._eager:
            trace, tensors = self.trace(inputs)
            return trace.call(tensors)
        with stage_errors.in_stage(self.stage, lambda: self._layer):
            while True:
                result, notes = self._run(inputs.values, self._further(inputs))
                if not self._finds_state(notes):
                    return result.named(notes)

    def trace(self, inputs: StageInputs) -> tuple[StageTrace, list[Any]]:
        """The trace that serves such inputs, and the tensors to call it with."""
        with stage_errors.in_stage(self.stage, lambda: self._layer):
            while True:
                flat, layout = pack(inputs.values)
                tensors = [*flat, *self._further(inputs)]
                trace = self._trace_for(layout, tensors)
                if not self._finds_state(trace.notes):
                    return trace, tensors

    def _further(self, inputs: StageInputs) -> list[tf.Tensor]:
        return [*inputs.handed_in, *map(inputs.state.read, self._state)]

    def _finds_state(self, notes: StageNotes) -> bool:
        """Whether the layers assigned a variable that none of them owns, such as the global seed.

        From now on it is handed in like the others, which takes another trace.
        """
        found = [v for v in notes.assigned if v not in self._state and not v.trainable]
        if found:
            self._state.update(found)
            self._traces.clear()
        return bool(found)

    def _trace_for(self, layout: Layout, tensors: Sequence[Any]) -> StageTrace:
        specs = specs_of(tensors)
        key = layout.key(specs)
        if key not in self._traces:
            self._traces[key] = self._trace(layout, specs)
        return self._traces[key]

    def _trace(self, layout: Layout, specs: Sequence[tf.TypeSpec]) -> StageTrace:
        noted: list[StageNotes] = []

        def body(*tensors: tf.Tensor) -> StageTensors:
            values = layout.unpack(tensors[: layout.num_tensors])
            result, notes = self._run(values, tensors[layout.num_tensors :])
            noted.append(notes)
            return result

        def make(jit_compile: bool) -> Any:
            # `autograph` would rewrite the users' layers, which Keras traces as they are.
            options = KEEP_AS_CALL if self._stays_a_call else {}
            return tf.function(
                body, autograph=False, jit_compile=jit_compile or None, **options
            ).get_concrete_function(*specs)

        compiler = None if self._training else self.compiler
        if compiler is not None:
            function = compiler.compiled_or_not(make)
            return StageTrace(function, function, noted[-1], layout, self.handed_in)
        function = make(False)
        maker = PieceMaker(self._stays_a_call, self.stage.device)
        runs = WholeFunction(function, maker, stage_scope(self.stage.index))
        return StageTrace(function, runs, noted[-1], layout, self.handed_in)

    def _run(
        self, inputs: Sequence[Value], further: Sequence[tf.Tensor]
    ) -> tuple[StageTensors, StageNotes]:
        """Runs the layers."""
        values = dict(zip(self.stage.inputs, inputs))
        scope = AssignmentScope(zip([*self.handed_in, *self._state], further))
        losses: IdentityMap[tf.Tensor, tf.Tensor] = IdentityMap()
        loss_calls: list[LossCall] = []
        valid: IdentityMap[keras.Layer, tf.Tensor] = IdentityMap()
        with tf.device(self.stage.device), tf.name_scope(stage_scope(self.stage.index)), scope:
            for call in self.stage.calls:
                self._layer = call.name
                read = [values[number] for number in call.inputs]
                with _scopes_around(call):
                    values.update(zip(call.outputs, call.run(read, self._training)))
                added = [loss for loss in scope.losses if loss not in losses]
                losses.update((loss, tf.reduce_sum(loss)) for loss in added)
                loss_calls += [LossCall(call, read, place) for place in range(len(added))]
                mask = self._mask_of_norm(call, read)
                if mask is not None:
                    valid[call.layer] = tf.reduce_sum(tf.cast(mask, COUNT))
            self._layer = ""
            outputs, layout = pack([values[number] for number in self.stage.outputs])
            outputs = [_renamed(tensor) for tensor in outputs]
        self._check_reads(scope)
        assigned = [tf.convert_to_tensor(value) for value in scope.assigned.values()]
        notes = StageNotes(layout, loss_calls, list(scope.assigned), list(valid))
        return StageTensors(outputs, [*losses.values()], assigned, [*valid.values()]), notes

    def _check_reads(self, scope: AssignmentScope) -> None:
        """Refuses a weight that is read without owning its layer: its gradient would be lost."""
        known = IdentitySet((*self.stage.variables, *self.stage.borrowed))
        hidden = [v for v in self._foreign if v in scope.read and v not in known]
        if hidden and self._training:
            raise ValueError(
                f"A layer or op reads the weight '{hidden[0].path}' of a layer in another stage "
                "without owning that layer, so its gradient would be lost. Make the other layer "
                "an attribute of the one that reads it (`self.tied = other_layer`), or choose "
                "`cuts` that keep both in one stage."
            )

    def _mask_of_norm(self, call: LayerCall, read: Sequence[Value]) -> Any:
        is_norm = isinstance(call.layer, keras.layers.BatchNormalization)
        return get_mask(read[0]) if is_norm and self._training else None


def _renamed(tensor: Any) -> Any:
    """Returns a new tensor, so that an output which a layer returned twice has two gradients."""

    def rename(part: tf.Tensor) -> tf.Tensor:
        return tf.identity(part) if part.dtype.is_floating or part.dtype.is_complex else part

    return tf.nest.map_structure(rename, tensor, expand_composites=True)


@contextlib.contextmanager
def _scopes_around(call: LayerCall) -> Iterator[None]:
    """Name scopes for the models a layer is nested in, which are not called themselves.

    The dot keeps TensorFlow's number apart from the name: `tower._1` is `tower` once more, and
    not its neighbour `tower_1`.
    """
    with contextlib.ExitStack() as scopes:
        for name in call.name.split("/")[:-1]:
            scopes.enter_context(tf.name_scope(f"{name}."))
        yield
