"""What a stage that trains is: for the executor, which knows nothing else of it.

`TracedStage` is for steps that are traced, `EagerStage` for `run_eagerly`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import tensorflow as tf

from keras_mgpu.pipeline.stage.gradients import Gradient
from keras_mgpu.pipeline.stage.piece_function import Waitable
from keras_mgpu.pipeline.stage.stage_function import StageInputs, StageOutputs
from keras_mgpu.pipeline.stage.stage_program import Leaf


@dataclass(frozen=True, eq=False)
class Backward:
    """What a backward pass gave.

    Attributes:
        of_inputs: Gradients of the inputs that have one.
        ran: What others can wait for; empty in eager steps.
    """

    of_inputs: Mapping[Leaf, tf.Tensor]
    ran: list[Waitable] = field(default_factory=list)


@dataclass(frozen=True, eq=False)
class StepsAhead:
    """What a stage is going to do in the steps that follow.

    Attributes:
        inputs: What a run of it starts from.
        cotangents: The outputs that will be given gradients.
    """

    inputs: StageInputs
    cotangents: Collection[Leaf]


class StageRun(Protocol):
    """A micro-batch in a stage, from its forward pass on. It holds what the backward needs."""

    @property
    def outputs(self) -> StageOutputs:
        """What the forward gave."""

    @property
    def ran(self) -> list[Waitable]:
        """What others can wait for, of the forward."""

    def recompute(self) -> list[Waitable]:
        """Runs the layers again for what the backward needs, and for nothing else."""

    def backward(
        self, cotangents: Mapping[Leaf, tf.Tensor], loss_gradients: Sequence[tf.Tensor]
    ) -> Backward:
        """Finds the gradients of the inputs, and of the weights unless these come later.

        Args:
            cotangents: Gradients of the stage's outputs.
            loss_gradients: Gradients of the losses its layers added.
        """

    def weight_gradients(self) -> list[Waitable]:
        """Finds the gradients of the weights that the backward has left."""


class TrainingStage(Protocol):
    """A stage in training steps."""

    def prepare(self, steps: StepsAhead) -> Collection[Leaf]:
        """Gets ready for training; returns the inputs that will have a gradient."""

    def release(self) -> None:
        """Gives back the memory that it took to get ready; it takes it again with the next step."""

    def begin(self) -> None:
        """Starts a step: nothing is summed yet."""

    def forward(self, inputs: StageInputs) -> StageRun:
        """Runs the layers on a micro-batch."""

    def gradients(self) -> list[Gradient]:
        """For each weight, the sum over micro-batches, or `None`."""
