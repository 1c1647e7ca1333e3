"""A split model as something that runs: batches in, gradients or outputs out.

Keras's training loop stands in front of it, in `pipeline_split.py`; here is all that has to do with
stages, micro-batches and schedules.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from keras_mgpu import micro_batches
from keras_mgpu import schedule as schedules
from keras_mgpu.executor import Executor
from keras_mgpu.layer_calls import LayerCalls, Value
from keras_mgpu.loss_head import Batch, CompiledLoss, LossHead
from keras_mgpu.partition import PartitionPlan
from keras_mgpu.schedule import Schedule
from keras_mgpu.stage_function import StageFunction
from keras_mgpu.stages import Stage, make_stages
from keras_mgpu.state_flow import StateFlow


class Pipeline:
    """The stages of a model and the order in which they run.

    Args:
        calls: The model as a line of layer calls.
        plan: Where it is cut.
        devices: One a stage.
        schedule: The order of forward and backward passes.
        batch_norm: When statistics of batch normalization move.
    """

    def __init__(
        self,
        calls: LayerCalls,
        plan: PartitionPlan,
        devices: Sequence[str],
        schedule: Schedule,
        batch_norm: str,
    ) -> None:
        self.calls = calls
        self.plan = plan
        self.schedule = schedule
        self.stages: tuple[Stage, ...] = make_stages(calls, plan, devices)
        self._batch_norm = batch_norm
        self._functions: dict[bool, list[StageFunction]] = {}
        self._eager = False

    def forget_traces(self, eager: bool) -> None:
        """Starts anew: what was traced before no longer holds."""
        self._functions = {}
        self._eager = eager

    def cut(self, x: Value, y: Value = None, sample_weight: Value = None) -> Batch:
        return Batch.of(x, y, sample_weight, self.schedule.num_micro_batches)

    def state(self, batch: Batch) -> StateFlow:
        return StateFlow(self.stages, batch.sizes, self._batch_norm)

    def loss_head(
        self, compiled: CompiledLoss, batch: Batch, training: bool, scale: tf.Tensor
    ) -> LossHead:
        """The end of the pipeline: the compiled loss and metrics for one batch."""
        y_pred = self.calls.output_spec(batch.x)
        compiled.get_ready(batch.x, batch.y, y_pred, batch.sample_weight)

        def forward(inputs: Value) -> Value:
            return self.calls.run(inputs, training)

        return LossHead(compiled, batch, training, scale, self.calls.pack_outputs, forward)

    def train(
        self, batch: Batch, head: LossHead, state: StateFlow, weights: Sequence[keras.Variable]
    ) -> list[Any]:
        """Forward and backward; returns the gradient of each weight, or `None`."""
        schedule = self.schedule
        if head.couples_samples:
            schedule = schedules.gpipe(schedule.num_stages, schedule.num_micro_batches)
        return self._run(batch, head, state, schedule, weights)

    def forward(self, batch: Batch, head: Any, state: StateFlow) -> None:
        """Forward passes only, in inference mode."""
        sizes = self.schedule.num_stages, self.schedule.num_micro_batches
        self._run(batch, head, state, schedules.forward_only(*sizes), ())

    def predict(self, batch: Batch) -> Value:
        """The outputs of a whole batch."""
        outputs, state = _OutputsHead(), self.state(batch)
        self.forward(batch, outputs, state)
        state.assign()
        packed = [self.calls.pack_outputs(values) for values in outputs.taken]
        return micro_batches.merge(packed, batch.sizes)

    def _run(
        self,
        batch: Batch,
        head: Any,
        state: StateFlow,
        schedule: Schedule,
        weights: Sequence[keras.Variable],
    ) -> list[Any]:
        inputs = self.calls.standardize(batch.x)
        parts = micro_batches.split(inputs, batch.sizes)
        feeds = [dict(zip(self.calls.inputs, part)) for part in parts]
        functions = self._stage_functions(training=schedule.has_backward)
        executor = Executor(functions, schedule, self.calls.outputs, weights)
        return executor.run(feeds, head, state)

    def _stage_functions(self, training: bool) -> list[StageFunction]:
        if training not in self._functions:
            num_calls = self.schedule.num_micro_batches
            weights = {id(v): v for stage in self.stages for v in stage.variables if v.trainable}
            self._functions[training] = [
                StageFunction(stage, training, self._eager, num_calls, weights)
                for stage in self.stages
            ]
        return self._functions[training]


class _OutputsHead:
    """A head that only keeps outputs, for `predict`."""

    def __init__(self) -> None:
        self.taken: list[list[Value]] = []

    def take_outputs(self, micro_batch: int, outputs: list[Value]) -> None:
        self.taken.append(outputs)

    def take_losses(self, micro_batch: int, losses: Any, calls: Any) -> list[tf.Tensor]:
        return []

    def output_gradients(self, micro_batch: int) -> list[list[tf.Tensor | None]]:
        return []
