"""A split model as something that runs: batches in, loss and gradients or outputs out.

Keras's training loop is in front of it, in `pipeline_split.py`; here is everything that has to do
with stages, micro-batches and schedules.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf
from keras import tree

from keras_mgpu.blueprint import named_schedules
from keras_mgpu.blueprint.partition import PartitionPlan
from keras_mgpu.blueprint.schedule import Schedule
from keras_mgpu.blueprint.timeline import Costs, StageBytes
from keras_mgpu.internals.identity import IdentityMap, are_same, unique
from keras_mgpu.internals.tf_functions import scratch_graph
from keras_mgpu.internals.tf_graph_optimizer import OptimizeStagesOnly
from keras_mgpu.model.layer_calls import LayerCalls, Value
from keras_mgpu.model.stages import Stage, make_stages
from keras_mgpu.pipeline import micro_batches
from keras_mgpu.pipeline.executor import Head, StepData, Trainer, infer, weights_of
from keras_mgpu.pipeline.loss import loss_terms
from keras_mgpu.pipeline.loss.compiled_loss import CompiledLoss
from keras_mgpu.pipeline.loss.loss_head import LossHead
from keras_mgpu.pipeline.micro_batches import Batch, Number
from keras_mgpu.pipeline.stage.eager_stage import EagerStage
from keras_mgpu.pipeline.stage.gradients import Gradient
from keras_mgpu.pipeline.stage.measuring import measure
from keras_mgpu.pipeline.stage.stage_function import LossCall, StageFunction
from keras_mgpu.pipeline.stage.traced_stage import TracedStage
from keras_mgpu.pipeline.stage.training_stage import TrainingStage
from keras_mgpu.pipeline.stage.xla import StageCompiler
from keras_mgpu.pipeline.state_flow import StateFlow, norms_by_statistic


@dataclass(frozen=True, eq=False)
class StepResult:
    """What a training step found, before anything is assigned.

    Attributes:
        loss: The loss, with what layers and regularizers add.
        gradients: The gradient of each weight for the scaled loss, or `None`.
        state: What layers assigned.
    """

    loss: tf.Tensor
    gradients: list[Gradient]
    state: StateFlow


@dataclass(frozen=True, eq=False)
class _Trained:
    """What the last step was traced with.

    Attributes:
        specs: The forms of inputs, targets and weights.
        compiled: The compiled loss and metrics.
        trainer: The stages.
    """

    specs: Value
    compiled: CompiledLoss
    trainer: Trainer


class Pipeline:
    """The stages of a model and the order in which they run.

    Args:
        calls: The model as a line of layer calls.
        plan: Where the line is cut.
        devices: One per stage.
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
        self._norms: IdentityMap[keras.Variable, keras.Layer] = IdentityMap()
        if batch_norm == "deferred":
            self._norms = norms_by_statistic(self.stages)
        self._functions: dict[bool, list[StageFunction]] = {}
        self._training_stages: list[TrainingStage] = []
        self._trained_weights: list[keras.Variable] = []
        self._eager = False
        self._optimizer = OptimizeStagesOnly()
        self._compilers: list[StageCompiler | None] = [None for _ in self.stages]
        self._full_sizes: dict[str, tf.Variable] = {}
        self._trained: _Trained | None = None

    def forget_traces(self, eager: bool, jit_compile: bool) -> None:
        """Starts anew: what was traced before no longer holds."""
        self._functions = {}
        self._training_stages = []
        self._eager = eager
        self._compilers = [StageCompiler(stage) if jit_compile else None for stage in self.stages]
        self._full_sizes = {}

    @contextlib.contextmanager
    def by_hand(self) -> Iterator[None]:
        """Stages run one op after the other, as under `run_eagerly`: errors show where they are."""
        functions, stages = self._functions, self._training_stages
        eager, compilers = self._eager, self._compilers
        self._functions, self._training_stages = {}, []
        self._eager, self._compilers = True, [None for _ in self.stages]
        try:
            yield
        finally:
            self._functions, self._training_stages = functions, stages
            self._eager, self._compilers = eager, compilers

    def around_step(self) -> contextlib.AbstractContextManager[None]:
        """The scope in which a step is to be called."""
        is_split = self.schedule.num_micro_batches > 1
        return self._optimizer.around_step() if is_split else contextlib.nullcontext()

    def inside_step(self) -> contextlib.AbstractContextManager[None]:
        """The scope in which a step calls functions that TensorFlow should optimize."""
        return self._optimizer.inside_step()

    @contextlib.contextmanager
    def after_all(self, gradients: Sequence[Gradient]) -> Iterator[None]:
        """What is built inside runs once all stages are through: all of a step is done, or none."""
        if self._eager or self.schedule.num_micro_batches == 1:
            yield
            return
        tensors = [g.values if isinstance(g, tf.IndexedSlices) else g for g in gradients]
        with tf.device(self.stages[-1].device):
            done = tf.group([tensor.op for tensor in tensors if tensor is not None])
        with tf.control_dependencies([done]):
            yield

    def split_batch(
        self,
        mode: str,
        x: Value,
        y: Value = None,
        sample_weight: Value = None,
        *,
        is_open_in_keras: bool = False,
    ) -> Batch:
        """Splits a batch into micro-batches, for the modes `train`, `test` and `predict`."""
        num = self.schedule.num_micro_batches
        full = self._full_size(mode)
        batch = Batch.of(x, y, sample_weight, num, full, is_open_in_keras)
        for compiler in filter(None, self._compilers):
            compiler.expect_rows(batch.static_size and -(-batch.static_size // num))
        return batch

    def train(
        self,
        batch: Batch,
        compiled: CompiledLoss,
        weights: Sequence[keras.Variable],
        scale: Number,
    ) -> StepResult:
        """Forward and backward passes of a batch.

        Args:
            batch: The batch.
            compiled: The compiled loss and metrics.
            weights: The variables to find gradients for.
            scale: What gradients are multiplied by, for loss scaling.
        """
        data, head = self._training_data(batch, compiled, scale)
        schedule = self.schedule
        if head.couples_samples:
            schedule = named_schedules.forwards_first(schedule)
        trainer = self._trainer(weights)
        self._trained = _Trained(tree.map_structure(_spec, batch.given), compiled, trainer)
        with self.inside_step():
            if not self._eager:
                with scratch_graph("rehearsal").as_default():
                    trainer.rehearse(schedule, self._training_data(batch, compiled, scale)[0])
            gradients = trainer.run(schedule, data)
        return StepResult(
            loss=head.finish() + loss_terms.penalty(weights),
            gradients=loss_terms.add_penalty_gradients(gradients, weights, scale),
            state=data.state,
        )

    def test(
        self, batch: Batch, compiled: CompiledLoss, weights: Sequence[keras.Variable]
    ) -> StepResult:
        """Forward passes of a batch; its loss, and no gradients."""
        head = self._head(batch, compiled, training=False, scale=1.0)
        data = self._data(batch, head)
        self._infer(data)
        return StepResult(head.finish() + loss_terms.penalty(weights), [], data.state)

    def predict(self, batch: Batch) -> Value:
        """The outputs of a whole batch."""
        head = _OutputsHead()
        data = self._data(batch, head)
        self._infer(data)
        data.state.assign()
        packed = [self.calls.pack_outputs(values) for values in head.taken]
        return micro_batches.merge(packed, batch.sizes)

    def measure(self, num_samples: int, num_rounds: int = 5) -> tuple[Costs, StageBytes]:
        """What a micro-batch of some size costs in each stage, and what it keeps there."""
        if type(num_samples) is not int or num_samples < 1:
            raise ValueError(
                "`num_samples` must be an integer of at least 1, the size of a micro-batch. "
                f"Received: num_samples={num_samples!r}"
            )
        traced = [stage for stage in self._training_stages if isinstance(stage, TracedStage)]
        if not traced or self._trained is None:
            raise ValueError(
                "Stages can be measured once a step has been traced. Call `fit` first, without "
                "`run_eagerly`."
            )
        self._rehearse(self._trained, num_samples)
        measured = [measure(stage.program, num_samples, num_rounds) for stage in traced]
        costs = Costs(
            forward=[each.seconds["forward"] for each in measured],
            backward=[each.seconds["backward"] for each in measured],
            weight=[each.seconds.get("weights", 0.0) for each in measured],
            recompute=[each.recompute_seconds for each in measured],
        )
        return costs, StageBytes(
            activations=[each.activations for each in measured],
            for_weights=[each.for_weights for each in measured],
            inputs=[each.inputs for each in measured],
        )

    def _rehearse(self, trained: _Trained, num_samples: int) -> None:
        """Prepares stages for micro-batches of this size, as for a step like the last one.

        With inputs that are not plain tensors, they stay as they are prepared: for any size.
        """
        size = num_samples * self.schedule.num_micro_batches
        specs = [spec for spec in tree.flatten(trained.specs) if spec is not None]
        if not all(isinstance(spec, tf.TensorSpec) for spec in specs):
            return

        def placeholder(spec: tf.TensorSpec | None) -> tf.Tensor | None:
            if spec is None:
                return None
            return tf.compat.v1.placeholder(spec.dtype, [size, *spec.shape[1:]])

        with scratch_graph("rehearsal").as_default(), self.inside_step():
            batch = self.split_batch("train", *tree.map_structure(placeholder, trained.specs))
            data, _ = self._training_data(batch, trained.compiled, 1.0)
            trained.trainer.rehearse(self.schedule, data)

    def state(self, batch: Batch) -> StateFlow:
        """The state of layers over the micro-batches of a batch."""
        return StateFlow(batch.sizes, self._norms)

    def _full_size(self, mode: str) -> tf.Variable | None:
        if not any(self._compilers):
            return None
        if mode not in self._full_sizes:
            with tf.init_scope(), tf.device(micro_batches.HOST):
                self._full_sizes[mode] = tf.Variable(0, trainable=False)
        return self._full_sizes[mode]

    def _head(
        self, batch: Batch, compiled: CompiledLoss, *, training: bool, scale: Number
    ) -> LossHead:
        """The end of the pipeline: the compiled loss and metrics for one batch."""
        y_pred = self.calls.output_spec(batch.x)
        compiled.get_ready(batch.x, batch.y, y_pred, batch.sample_weight)
        return LossHead(compiled, batch, self.calls, training=training, scale=scale)

    def _training_data(
        self, batch: Batch, compiled: CompiledLoss, scale: Number
    ) -> tuple[StepData[StateFlow], LossHead]:
        head = self._head(batch, compiled, training=True, scale=scale)
        return self._data(batch, head), head

    def _data(self, batch: Batch, head: Head) -> StepData[StateFlow]:
        parts = micro_batches.split(self.calls.standardize(batch.x), batch.sizes)
        feeds = [dict(zip(self.calls.inputs, part)) for part in parts]
        return StepData(feeds, self.calls.outputs, head, self.state(batch))

    def _infer(self, data: StepData[StateFlow]) -> None:
        schedule = named_schedules.forwards_only(self.schedule)
        with self.inside_step():
            infer(self._stage_functions(training=False), schedule, data)

    def _trainer(self, weights: Sequence[keras.Variable]) -> Trainer:
        if not are_same(weights, self._trained_weights):
            # A layer was frozen or thawed, which also changes what it does in a forward pass.
            self._functions.pop(True, None)
            self._training_stages, self._trained_weights = [], list(weights)
        functions = self._stage_functions(training=True)
        if not self._training_stages:
            made = {number for each in functions for number in each.stage.outputs}
            made -= set(self.calls.inputs)
            self._training_stages = [
                self._training_stage(function, weights_of(function, weights), made)
                for function in functions
            ]
        return Trainer(functions, self._training_stages, weights)

    def _training_stage(
        self, function: StageFunction, weights: Sequence[keras.Variable], made: set[int]
    ) -> TrainingStage:
        kinds = self.schedule.kinds_of(function.stage.index)
        if self._eager:
            return EagerStage(function, weights, made, kinds)
        return TracedStage(
            function,
            weights,
            made,
            kinds,
            num_micro_batches=self.schedule.num_micro_batches,
            stays_a_call=self._stays_a_call,
        )

    def _stage_functions(self, training: bool) -> list[StageFunction]:
        if training not in self._functions:
            variables = unique(v for stage in self.stages for v in stage.variables)
            self._functions[training] = [
                StageFunction(
                    stage,
                    training=training,
                    eager=self._eager,
                    foreign=[variable for variable in variables if variable.trainable],
                    compiler=compiler,
                    stays_a_call=self._stays_a_call,
                )
                for stage, compiler in zip(self.stages, self._compilers)
            ]
        return self._functions[training]

    @property
    def _stays_a_call(self) -> bool:
        """Whether a stage runs more than once per step: then it must not be copied into it."""
        return bool(self.schedule.recomputed_stages) or self.schedule.num_micro_batches > 1


def _spec(leaf: Any) -> tf.TypeSpec | None:
    return None if leaf is None else tf.type_spec_from_value(leaf)


class _OutputsHead:
    """A head that only keeps outputs, for `predict`."""

    couples_samples = False

    def __init__(self) -> None:
        self.taken: list[list[Value]] = []

    def take_outputs(self, micro_batch: int, outputs: list[Value]) -> None:
        self.taken.append(outputs)

    def take_losses(
        self, micro_batch: int, losses: Sequence[tf.Tensor], calls: Sequence[LossCall]
    ) -> list[tf.Tensor]:
        return []

    def output_gradients(self, micro_batch: int) -> list[list[tf.Tensor | None]]:
        return []
