"""A split model as something that runs: batches in, gradients or outputs out.

Keras's training loop stands in front of it, in `pipeline_split.py`; here is all that has to do with
stages, micro-batches and schedules.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from keras_mgpu.blueprint import named_schedules
from keras_mgpu.blueprint.partition import PartitionPlan
from keras_mgpu.blueprint.schedule import Schedule
from keras_mgpu.blueprint.timeline import Costs, StageBytes
from keras_mgpu.internals.tf_functions import scratch_graph
from keras_mgpu.model.layer_calls import LayerCalls, Value
from keras_mgpu.model.stages import Stage, make_stages
from keras_mgpu.pipeline import micro_batches
from keras_mgpu.pipeline.executor import Trainer, infer
from keras_mgpu.pipeline.loss.compiled_loss import CompiledLoss
from keras_mgpu.pipeline.loss.loss_head import LossHead
from keras_mgpu.pipeline.micro_batches import Batch
from keras_mgpu.pipeline.stage.stage_function import StageFunction
from keras_mgpu.pipeline.stage.value_function import KEEP_AS_CALL
from keras_mgpu.pipeline.stage.xla import StageCompiler
from keras_mgpu.pipeline.state_flow import StateFlow
from keras_mgpu.pipeline.step_optimization import OptimizeStagesOnly


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
        self._made_trainer: Trainer | None = None
        self._eager = False
        self._optimizer = OptimizeStagesOnly()
        self._compilers: list[StageCompiler | None] = [None for _ in self.stages]
        self._full_sizes: dict[str, tf.Variable] = {}

    def forget_traces(self, eager: bool, jit_compile: bool) -> None:
        """Starts anew: what was traced before no longer holds."""
        self._functions = {}
        self._made_trainer = None
        self._eager = eager
        self._compilers = [StageCompiler(stage) if jit_compile else None for stage in self.stages]
        self._full_sizes = {}

    def around_step(self) -> contextlib.AbstractContextManager[None]:
        """The scope in which a step is to be called."""
        is_cut = self.schedule.num_micro_batches > 1
        return self._optimizer.around_step() if is_cut else contextlib.nullcontext()

    def cut(self, mode: str, x: Value, y: Value = None, sample_weight: Value = None) -> Batch:
        """Cuts a batch into micro-batches, for one of the modes `train`, `test` and `predict`."""
        num = self.schedule.num_micro_batches
        batch = Batch.of(x, y, sample_weight, num, self._full_size(mode))
        for compiler in filter(None, self._compilers):
            compiler.num_rows = batch.static_size and -(-batch.static_size // num)
        return batch

    def _full_size(self, mode: str) -> tf.Variable | None:
        if not any(self._compilers):
            return None
        if mode not in self._full_sizes:
            with tf.init_scope(), tf.device(micro_batches.HOST):
                self._full_sizes[mode] = tf.Variable(0, trainable=False)
        return self._full_sizes[mode]

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
        self,
        batch: Batch,
        make_head: Callable[[], LossHead],
        state: StateFlow,
        weights: Sequence[keras.Variable],
    ) -> tuple[LossHead, list[Any]]:
        """Forward and backward; returns the head and the gradient of each weight, or `None`."""
        head, feeds = make_head(), self._feeds(batch)
        schedule = self.schedule
        if head.couples_samples:
            schedule = named_schedules.forwards_first(schedule)
        trainer = self._trainer(weights)
        with self._optimizer.inside_step():
            if not self._eager:
                with scratch_graph("rehearsal").as_default():
                    twins = make_head(), self.state(batch)
                    trainer.rehearse(schedule, feeds[0], self.calls.outputs, *twins)
            return head, trainer.run(schedule, feeds, self.calls.outputs, head, state)

    def forward(self, batch: Batch, head: Any, state: StateFlow) -> None:
        """Forward passes only, in inference mode."""
        feeds, schedule = self._feeds(batch), named_schedules.forwards_only(self.schedule)
        functions = self._stage_functions(training=False)
        with self._optimizer.inside_step():
            infer(functions, schedule, feeds, self.calls.outputs, head, state)

    def predict(self, batch: Batch) -> Value:
        """The outputs of a whole batch."""
        outputs, state = _OutputsHead(), self.state(batch)
        self.forward(batch, outputs, state)
        state.assign()
        packed = [self.calls.pack_outputs(values) for values in outputs.taken]
        return micro_batches.merge(packed, batch.sizes)

    def measure(self, num_samples: int, num_rounds: int = 5) -> tuple[Costs, StageBytes]:
        """What a micro-batch of some size costs in each stage, and what it keeps there."""
        if type(num_samples) is not int or num_samples < 1:
            raise ValueError(
                "`num_samples` must be an integer of at least 1, the size of a micro-batch. "
                f"Received: num_samples={num_samples!r}"
            )
        if self._made_trainer is None or self._eager:
            raise ValueError(
                "Stages can be measured when a step has been traced: call `fit` first, without "
                "`run_eagerly`."
            )
        measured = self._made_trainer.measure(num_samples, num_rounds)
        seconds, sizes = zip(*measured)
        costs = Costs(
            forward=[each["forward"] for each in seconds],
            backward=[each["backward"] for each in seconds],
            weight=[each.get("weights", 0.0) for each in seconds],
            recompute=[each.get("recompute", each["forward"]) for each in seconds],
        )
        return costs, StageBytes(
            activations=[each["activations"] for each in sizes],
            for_weights=[each["for_weights"] for each in sizes],
            inputs=[each["inputs"] for each in sizes],
        )

    def _feeds(self, batch: Batch) -> list[dict[int, Value]]:
        """For each micro-batch, the model's inputs by their numbers."""
        parts = micro_batches.split(self.calls.standardize(batch.x), batch.sizes)
        return [dict(zip(self.calls.inputs, part)) for part in parts]

    def _trainer(self, weights: Sequence[keras.Variable]) -> Trainer:
        if self._made_trainer is None:
            functions = self._stage_functions(training=True)
            num, data = self.schedule.num_micro_batches, self.calls.inputs
            self._made_trainer = Trainer(
                functions, weights, num, data, self._eager, self._stays_a_call
            )
        return self._made_trainer

    def _stage_functions(self, training: bool) -> list[StageFunction]:
        if training not in self._functions:
            weights = {id(v): v for stage in self.stages for v in stage.variables if v.trainable}
            options = KEEP_AS_CALL if self._stays_a_call else {}
            self._functions[training] = [
                StageFunction(stage, training, self._eager, weights, compiler, **options)
                for stage, compiler in zip(self.stages, self._compilers)
            ]
        return self._functions[training]

    @property
    def _stays_a_call(self) -> bool:
        """Whether a stage runs more than once a step: then it must not be copied into it."""
        recomputes = any(op.kind == "R" for lane in self.schedule.lanes for op in lane)
        return recomputes or self.schedule.num_micro_batches > 1


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
