"""A stage that trains without being traced: the layers' own Python runs, under a tape."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import keras
import tensorflow as tf

from keras_mgpu.internals.identity import IdentityMap
from keras_mgpu.pipeline.stage import stage_errors
from keras_mgpu.pipeline.stage.gradients import Gradient, GradientSum
from keras_mgpu.pipeline.stage.piece_function import Waitable
from keras_mgpu.pipeline.stage.stage_function import StageFunction, StageInputs
from keras_mgpu.pipeline.stage.stage_program import Leaf, float_leaves
from keras_mgpu.pipeline.stage.training_stage import Backward, StepsAhead


class EagerStage:
    """A stage whose gradients a tape finds, micro-batch by micro-batch.

    Args:
        function: The stage.
        weights: The weights to find gradients for.
        made: Numbers of the values that stages make, and so can have gradients.
        kinds: The kinds of ops that the schedule has for it.
    """

    def __init__(
        self,
        function: StageFunction,
        weights: Sequence[keras.Variable],
        made: Collection[int],
        kinds: Collection[str],
    ) -> None:
        self.function = function
        self.weights = weights
        self.made = made
        self.kinds = kinds
        self._sums = GradientSum(weights)

    def prepare(self, steps: StepsAhead) -> Collection[Leaf]:
        """A tape needs no preparation: whatever can have a gradient may get one."""
        leaves = float_leaves(self.function.stage.inputs, steps.inputs.values)
        return [leaf for leaf in leaves if leaf[0] in self.made]

    def release(self) -> None:
        self.begin()

    def begin(self) -> None:
        self._sums = GradientSum(self.weights)

    def forward(self, inputs: StageInputs) -> EagerRun:
        run = EagerRun(self, inputs, self._sums)
        if "R" in self.kinds:
            run.forget()
        return run

    def gradients(self) -> list[Gradient]:
        return self._sums.total()


class EagerRun:
    """A micro-batch in a stage, under a tape.

    Args:
        stage: The stage.
        inputs: What the run starts from.
        sums: Takes the gradients of the weights.
    """

    def __init__(self, stage: EagerStage, inputs: StageInputs, sums: GradientSum) -> None:
        self.ran: list[Waitable] = []
        self._stage = stage
        self._inputs = inputs
        self._sums = sums
        self._of_weights: list[Gradient] = []
        self._record()

    def _record(self) -> None:
        stage, inputs = self._stage, self._inputs
        leaves = float_leaves(stage.function.stage.inputs, inputs.values)
        self._sources = {leaf: x for leaf, x in leaves.items() if leaf[0] in stage.made}
        given: IdentityMap[keras.Variable, tf.Tensor]
        given = IdentityMap(zip(stage.function.handed_in, inputs.handed_in))
        self._weights = [given.get(v, v.value) for v in stage.weights]
        with tf.GradientTape(watch_accessed_variables=False) as self._tape:
            self._tape.watch([*self._sources.values(), *self._weights])
            self.outputs = stage.function(inputs)

    def forget(self) -> None:
        """Keeps what the run starts from and nothing else, until it is recomputed."""
        self._tape = tf.GradientTape()

    def recompute(self) -> list[Waitable]:
        self._record()
        return []

    def backward(
        self, cotangents: Mapping[Leaf, tf.Tensor], loss_gradients: Sequence[tf.Tensor]
    ) -> Backward:
        leaves = float_leaves(self._stage.function.stage.outputs, self.outputs.values)
        targets = [*self.outputs.losses, *(leaves[leaf] for leaf in cotangents)]
        sources = [*self._sources.values(), *self._weights]
        found: list[Gradient] = [None for _ in sources]
        if targets:
            given = [*loss_gradients, *cotangents.values()]
            with stage_errors.in_stage(self._stage.function.stage):
                found = self._tape.gradient(targets, sources, output_gradients=given)
        self._of_weights = found[len(self._sources) :]
        if "W" not in self._stage.kinds:
            self.weight_gradients()
        of_inputs = zip(self._sources, found)
        return Backward({leaf: tf.convert_to_tensor(g) for leaf, g in of_inputs if g is not None})

    def weight_gradients(self) -> list[Waitable]:
        self._sums.add(self._of_weights)
        return []
