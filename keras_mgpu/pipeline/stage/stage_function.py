"""One stage as a pure function: tensors in, tensors out.

Keras layers assign to variables while they run: statistics, seeds, metrics. Called once for each
micro-batch, in an order a schedule chooses, that would give other numbers than one call with the
whole batch. Here every assignment is caught and handed out as a value, and whoever runs the
micro-batches decides what becomes of it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import keras
import tensorflow as tf

from keras_mgpu.internals.keras_variables import get_mask
from keras_mgpu.model.layer_calls import LayerCall, Value
from keras_mgpu.model.stages import Stage
from keras_mgpu.pipeline.micro_batches import COUNT
from keras_mgpu.pipeline.stage import stage_errors
from keras_mgpu.pipeline.stage.value_function import Trace, ValueFunction, pack
from keras_mgpu.pipeline.stage.xla import StageCompiler


@dataclass(frozen=True, eq=False)
class StageOutputs:
    """What one run of a stage gave.

    Attributes:
        values: The stage's output values, in the order of `stage.outputs`.
        losses: What its layers gave to `add_loss`, activity regularizers among them.
        loss_calls: For each loss, the call that added it and the values that call read.
        state: Each variable its layers assigned, and the new value.
        valid: For each batch normalization that saw a mask, by `id`, the number of valid places.
    """

    values: list[Value]
    losses: list[tf.Tensor]
    loss_calls: list[tuple[LayerCall, list[Value]]]
    state: list[tuple[keras.Variable, tf.Tensor]]
    valid: dict[int, tf.Tensor]


class StageFunction:
    """Runs a stage's layers without side effects, traced once for all micro-batches.

    Args:
        stage: The stage to run.
        training: Whether its layers run in training mode.
        eager: Run the layers' Python anew each time, as `run_eagerly` asks for.
        foreign: Weights of other stages, by `id`, which its layers must not read unseen.
        compiler: Has it compiled, if that works.
        options: For `tf.function`.
    """

    def __init__(
        self,
        stage: Stage,
        training: bool,
        eager: bool = False,
        foreign: Mapping[int, keras.Variable] = MappingProxyType({}),
        compiler: StageCompiler | None = None,
        **options: Any,
    ) -> None:
        self.stage = stage
        self.training = training
        self.state = stage.state
        self.compiler = compiler
        self._foreign = foreign
        self._function = ValueFunction(self._run, eager, compiler, **options)

    @property
    def handed_in(self) -> list[keras.Variable]:
        """Weights that are handed in as tensors, so that they are read once a step.

        Those that live with another stage; and tables, which TensorFlow copies whenever they are
        read if an optimizer writes to single rows of them. XLA reads variables in its own way.
        """
        state = {id(variable) for variable in self.state}
        weights = [*self.stage.borrowed, *(self.stage.tables if self.compiler is None else ())]
        return [variable for variable in weights if id(variable) not in state]

    def __call__(
        self,
        inputs: Sequence[Value],
        handed_in: Sequence[tf.Tensor],
        read_state: Callable[[keras.Variable], tf.Tensor],
    ) -> StageOutputs:
        """Runs the stage on one micro-batch.

        Args:
            inputs: The values of `stage.inputs`.
            handed_in: The values of `self.handed_in`.
            read_state: Gives the value a state variable has for this micro-batch.
        """

        def call() -> tuple[Any, dict[str, Any]]:
            return self._function(inputs, *handed_in, *map(read_state, self.state))

        result, notes = self._until_state_is_known(call, lambda called: called[1])
        return named_outputs(result, notes)

    def trace(
        self,
        inputs: Sequence[Value],
        handed_in: Sequence[tf.Tensor],
        read_state: Callable[[keras.Variable], tf.Tensor],
    ) -> tuple[Trace, list[tf.Tensor]]:
        """The trace that serves such a micro-batch, and the tensors to call it with."""

        def trace() -> tuple[Trace, list[tf.Tensor]]:
            return self._function.trace(inputs, *handed_in, *map(read_state, self.state))

        return self._until_state_is_known(trace, lambda traced: traced[0].notes)

    def _until_state_is_known(self, call: Callable[[], Any], notes: Callable[[Any], Any]) -> Any:
        with stage_errors.in_stage(self.stage):
            while True:
                result = call()
                if not self._found_state(notes(result)["assigned"]):
                    return result

    def _found_state(self, assigned: Sequence[keras.Variable]) -> bool:
        """Whether the layers assigned a variable that none of them owns, such as the global seed.

        From now on it is handed in like the others, which takes another trace.
        """
        known = {id(variable) for variable in self.state}
        found = [v for v in assigned if id(v) not in known and not v.trainable]
        if found:
            self.state = self.state + found
            self._function.forget()
        return bool(found)

    def _run(self, notes: dict[str, Any], inputs: list[Value], *tensors: tf.Tensor) -> Any:
        """Runs the layers; what only running them can tell is put in `notes`."""
        values = dict(zip(self.stage.inputs, inputs))
        scope = AssignmentScope(zip([*self.handed_in, *self.state], tensors))
        losses: dict[int, tf.Tensor] = {}
        valid: list[tf.Tensor] = []
        notes.update(loss_calls=[], masked_norms=[])
        with tf.device(self.stage.device), tf.name_scope(f"stage_{self.stage.index}"), scope:
            for call in self.stage.calls:
                read = [values[number] for number in call.inputs]
                with _scopes_around(call):
                    values.update(zip(call.outputs, call.run(read, self.training)))
                added = [loss for loss in scope.losses if id(loss) not in losses]
                losses.update((id(loss), tf.reduce_sum(loss)) for loss in added)
                notes["loss_calls"] += [(call, read)] * len(added)
                mask = self._mask_of_norm(call, read)
                if mask is not None:
                    notes["masked_norms"].append(id(call.layer))
                    valid.append(tf.reduce_sum(tf.cast(mask, COUNT)))
            outputs, notes["layout"] = pack([values[number] for number in self.stage.outputs])
            # Each output a tensor of its own, even where a layer returned one twice: gradients
            # are told apart by the tensor.
            outputs = [
                tf.nest.map_structure(tf.identity, x, expand_composites=True) for x in outputs
            ]
        self._check_reads(scope)
        notes["assigned"] = scope.variables
        return outputs, list(losses.values()), scope.values, valid

    def _check_reads(self, scope: AssignmentScope) -> None:
        """Refuses a weight that is read behind its layer's back: its gradient would be lost."""
        known = {id(variable) for variable in (*self.stage.variables, *self.stage.borrowed)}
        hidden = [v for key, v in self._foreign.items() if key in scope.read and key not in known]
        if hidden and self.training:
            raise ValueError(
                f"A layer or op reads the weight '{hidden[0].path}' of a layer in another stage "
                "without owning that layer, so its gradient cannot be followed. Give the layer "
                "that reads it the other as an attribute (`self.tied = other_layer`), or choose "
                "`cuts` that leave both in one stage."
            )

    def _mask_of_norm(self, call: LayerCall, read: Sequence[Value]) -> Any:
        is_norm = isinstance(call.layer, keras.layers.BatchNormalization)
        return get_mask(read[0]) if is_norm and self.training else None


def named_outputs(result: Any, notes: Mapping[str, Any]) -> StageOutputs:
    """What a run of a stage returned, by its names."""
    outputs, losses, state, valid = result
    return StageOutputs(
        values=notes["layout"].unpack(outputs),
        losses=list(losses),
        loss_calls=notes["loss_calls"],
        state=list(zip(notes["assigned"], state)),
        valid=dict(zip(notes["masked_norms"], valid)),
    )


class AssignmentScope(keras.StatelessScope):
    """Catches what layers assign, and remembers which variables they assigned."""

    def __init__(self, state_mapping: Iterable[tuple[keras.Variable, tf.Tensor]] = ()) -> None:
        super().__init__(list(state_mapping), collect_losses=True)
        self._assigned: dict[int, tuple[keras.Variable, Any]] = {}
        self.read: set[int] = set()

    @property
    def variables(self) -> list[keras.Variable]:
        return [variable for variable, _ in self._assigned.values()]

    @property
    def values(self) -> list[tf.Tensor]:
        return [tf.convert_to_tensor(value) for _, value in self._assigned.values()]

    def get_current_value(self, variable: keras.Variable) -> Any:
        self.read.add(id(variable))
        return super().get_current_value(variable)

    def add_update(self, update: tuple[keras.Variable, Any]) -> None:
        variable, value = update
        self._assigned[id(variable)] = variable, value
        if variable.trainable:
            # A weight that is read behind an assignment has its gradient at the read: it must
            # not flow back through what was assigned.
            read = tf.convert_to_tensor(variable.value)
            value = tf.stop_gradient(value) + (read - tf.stop_gradient(read))
        super().add_update((variable, value))


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
