"""`PipelineSplit`: a Keras model over several devices, trained as Keras trains it."""

from __future__ import annotations

import gc
import warnings
import weakref
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf

from keras_mgpu.blueprint.partition import PartitionPlan
from keras_mgpu.blueprint.schedule import Schedule
from keras_mgpu.blueprint.timeline import Costs, StageBytes
from keras_mgpu.internals.identity import unique
from keras_mgpu.internals.keras_graph import no_automatic_dependency_tracking
from keras_mgpu.internals.keras_training import (
    SharesCompiled,
    forget_functions,
    full_tracebacks,
    run_without_xla,
    write_jit_compile,
)
from keras_mgpu.model import layer_calls
from keras_mgpu.model.layer_calls import LayerCalls
from keras_mgpu.model.placing import place
from keras_mgpu.model.stages import Stage, weight_loads
from keras_mgpu.pipeline import optimizer_slots, planning, validation
from keras_mgpu.pipeline.batches import Batches
from keras_mgpu.pipeline.loss.compiled_loss import CompiledLoss
from keras_mgpu.pipeline.micro_batches import Batch, Number, as_tensor
from keras_mgpu.pipeline.pipeline import Pipeline
from keras_mgpu.pipeline.stage import stage_errors
from keras_mgpu.pipeline.verify import Verifier, VerifyReport
from keras_mgpu.profiling.short_stages import warn_of_short_stages
from keras_mgpu.system.terminal import fold_names

if TYPE_CHECKING:
    from keras_mgpu.profiling.measured_timeline import MeasuredStep

# The wrapper that was put around each model.
_splits: weakref.WeakKeyDictionary[keras.Model, weakref.ref[PipelineSplit]]
_splits = weakref.WeakKeyDictionary()


class PipelineSplit(SharesCompiled):
    """Splits a Keras model over devices and pipelines micro-batches through it.

    The layers are partitioned into stages, each pinned to a device. A batch is split into
    micro-batches that follow one another through the stages, so that the devices work at the same
    time. Everything else stays Keras: `compile`, `fit`, `evaluate`, `predict`, callbacks, `save`.
    Training gives the same numbers as the unsplit model, and trains the model object it was given.

    Example:

    ```python
    split = PipelineSplit(model, devices=["/GPU:0", "/GPU:1"], micro_batches=8)
    split.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    split.fit(x, y, epochs=3)
    split.save("model.keras")  # a plain Keras file
    ```

    Args:
        model: A built Sequential or Functional model, or a list of built layers or models of any
            kind, one per stage. Its variables are moved to the devices of their stages.
        devices: List of device strings, one per stage. A device may be listed more than once.
            Defaults to all visible GPUs.
        micro_batches: Integer, the number of micro-batches per batch. Defaults to 4 per device.
        schedule: `"1f1b"` (one forward, one backward: few micro-batches alive at once), `"gpipe"`
            (all forward passes, then all backward passes), `"interleaved"` (several stages per
            device: a smaller bubble) or `"zero_bubble"` (weight gradients are computed while a
            device would wait). Or a custom one: a `Schedule`, or the ops of each device such as
            `["0F0 0F1 0B0 0B1", "1F0 1B0 1F1 1B1"]`. Defaults to `"1f1b"`.
        cuts: Names of the layers that end a stage, or a `PartitionPlan`. Layers of nested models
            are named like `"encoder/dense_1"`. By default stages are balanced by estimated cost.
        stages_per_device: Integer, the number of stages on each device. Stages are assigned to
            devices in turns. Defaults to 2 for `"interleaved"` and to 1 for other schedules.
        recompute: Whether to keep only the inputs of a stage and to run its forward pass again
            right before the backward pass, which takes less memory and more time. `True` for all
            stages, a list of stage numbers, or `"auto"` for the stages where it saves memory.
            Defaults to `False`.
        batch_norm: When moving statistics of batch normalization are updated: `"deferred"`, once
            per batch, or `"micro_batch"`, once per micro-batch. Defaults to `"deferred"`.
        jit_compile: Whether XLA compiles each stage for its own device. Defaults to `False`.
        name: Optional name of the wrapper.

    Attributes:
        model: The user's own model, trained in place.
        plan: The `PartitionPlan`: which layers make up which stage.
        schedule: The `Schedule`: the order of forward and backward passes.
        stages: The `Stage` objects, with their devices and variables.
    """

    def __init__(
        self,
        model: keras.Model | Sequence[keras.Layer],
        devices: Sequence[str] | None = None,
        micro_batches: int | None = None,
        schedule: str | Schedule | Sequence[Any] = "1f1b",
        cuts: Sequence[str] | PartitionPlan | None = None,
        stages_per_device: int | None = None,
        recompute: bool | str | Collection[int] = False,
        batch_norm: str = "deferred",
        jit_compile: bool = False,
        name: str | None = None,
    ) -> None:
        validation.check_environment()
        validation.check_options(micro_batches, schedule, batch_norm, jit_compile)
        model, calls = _as_calls(model)
        names = planning.devices_of_stages(devices, stages_per_device, schedule)
        num = None if micro_batches is None else int(micro_batches)
        order = planning.make_schedule(schedule, names, num, recompute)
        plan = planning.make_plan(calls, cuts, len(names))
        pipeline = Pipeline(calls, plan, names, order, batch_norm)
        sublayers = [layer for stage in pipeline.stages for layer in stage.sublayers]
        validation.check_statelessness(sublayers, pipeline.schedule.num_micro_batches)
        _warn_of_norms(pipeline)
        super().__init__(name=name or f"{model.name}_split")
        _place(model, pipeline.stages)

        self._pipeline = pipeline
        self._compiles_stages = self._compiles_stages_now = jit_compile
        self._is_open_in_keras = False
        self.model = model
        self.built = True
        forget_functions(model)
        run_without_xla(self)
        _splits[model] = weakref.ref(self)
        if model.compiled:
            self._share()

    @property
    def plan(self) -> PartitionPlan:
        return self._pipeline.plan

    @property
    def schedule(self) -> Schedule:
        return self._pipeline.schedule

    @property
    def stages(self) -> tuple[Stage, ...]:
        return self._pipeline.stages

    @property
    def micro_batches(self) -> int:
        return self.schedule.num_micro_batches

    @property
    def devices(self) -> list[str]:
        return [stage.device for stage in self.stages]

    # Training.

    def compile(
        self,
        optimizer: Any = "rmsprop",
        loss: Any = None,
        loss_weights: Any = None,
        metrics: Any = None,
        weighted_metrics: Any = None,
        run_eagerly: bool = False,
        steps_per_execution: int = 1,
        jit_compile: bool | str = "auto",
        auto_scale_loss: bool = True,
    ) -> None:
        """Configures the model for training, exactly as `keras.Model.compile` does.

        The model inside is compiled with the same optimizer, losses and metrics. With
        `jit_compile=True` each stage is compiled by XLA for its own device.
        """
        validation.check_no_strategy()
        self.model.compile(
            optimizer=optimizer,
            loss=loss,
            loss_weights=loss_weights,
            metrics=metrics,
            weighted_metrics=weighted_metrics,
            run_eagerly=run_eagerly,
            steps_per_execution=steps_per_execution,
            jit_compile=False,
            auto_scale_loss=auto_scale_loss,
        )
        # The saved file has what the user asked for: the unsplit model may well use XLA.
        write_jit_compile(self.model, jit_compile)
        self._compiles_stages_now = self._compiles_stages or jit_compile is True
        self._share()

    @no_automatic_dependency_tracking
    def _share(self) -> None:
        """Trains with the optimizer, losses and metrics that the model inside is compiled with."""
        model = self.model
        validation.check_no_new_weights(model, self.stages)
        self.share_compiled(model)
        run_without_xla(self)  # Whoever compiled the model may have turned it on.
        self._pipeline.forget_traces(model.run_eagerly, self._compiles_stages_now)
        self._compiled = CompiledLoss(
            model, self.devices[-1], model.run_eagerly, self.micro_batches
        )
        if self.optimizer is not None and self.optimizer.built:
            optimizer_slots.place_slots(self.optimizer, self.stages)

    def before_use(self) -> None:
        """Follows a model inside that was compiled again in the meantime."""
        if self.model.compiled and not self.is_shared_with(self.model):
            self._share()

    def make_train_function(self, force: bool = False) -> Any:
        if self.train_function is None or force:
            validation.check_no_strategy()
            if self.optimizer is not None and self.trainable_weights:
                optimizer_slots.build_beside(self.optimizer, self.trainable_weights, self.stages)
            super().make_train_function(force=True)
            self.train_function = self._explaining(self.train_function, self._train_by_hand)
        return self.train_function

    def make_test_function(self, force: bool = False) -> Any:
        if self.test_function is None or force:
            super().make_test_function(force=True)
            self.test_function = self._explaining(self.test_function, self._test_by_hand)
        return self.test_function

    def make_predict_function(self, force: bool = False) -> Any:
        if self.predict_function is None or force:
            super().make_predict_function(force=True)
            self.predict_function = self._explaining(self.predict_function, self.predict_step)
        return self.predict_function

    def _explaining(self, function: Any, by_hand: Callable[[Any], Any]) -> Any:
        """A function that runs steps, made to say where an error comes from.

        Args:
            function: Runs steps, given their batches.
            by_hand: Runs a batch once more without changing a weight, for an error without cause.
        """

        def run(data: Any) -> Any:
            batches = Batches(data, are_read=self.micro_batches > 1)
            self._is_open_in_keras = batches.are_open_in_keras
            try:
                # What names no device runs beside the last stage, where loss and metrics are.
                with stage_errors.in_step(self.stages), self._pipeline.around_step():
                    with tf.device(self.devices[-1]):
                        return function(batches.to_run)
            except tf.errors.OpError as error:
                if not stage_errors.hides_its_cause(error) or batches.last is None:
                    raise
                with self._pipeline.by_hand(), self._compiled.by_hand(), full_tracebacks():
                    by_hand(batches.last)
                raise stage_errors.without_cause(error) from error

        return run

    def _train_by_hand(self, data: Any) -> None:
        batch = self._split_batch("train", data)
        self._pipeline.train(batch, self._compiled, self.trainable_weights, self._loss_scale())

    def _test_by_hand(self, data: Any) -> None:
        batch = self._split_batch("test", data)
        self._pipeline.test(batch, self._compiled, self.trainable_weights)

    def _split_batch(self, mode: str, data: Any) -> Batch:
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        is_open = self._is_open_in_keras
        return self._pipeline.split_batch(mode, x, y, sample_weight, is_open_in_keras=is_open)

    def train_step(self, data: Any) -> Any:
        """One step: all micro-batches through the pipeline, then one update of the weights."""
        batch = self._split_batch("train", data)
        weights = self.trainable_weights
        result = self._pipeline.train(batch, self._compiled, weights, self._loss_scale())
        self._track_loss(result.loss, batch)
        # What layers assigned comes before the update of the weights, as in plain Keras.
        with self._pipeline.inside_step(), self._pipeline.after_all(result.gradients):
            result.state.assign()
            if weights:
                optimizer_slots.apply_beside(self.optimizer, result.gradients, weights)
        if not weights:
            warnings.warn("The model does not have any trainable weights.", stacklevel=2)
        return self._metrics_result()

    def test_step(self, data: Any) -> Any:
        """Loss and metrics of a batch, in forward passes only."""
        batch = self._split_batch("test", data)
        result = self._pipeline.test(batch, self._compiled, self.trainable_weights)
        self._track_loss(result.loss, batch)
        result.state.assign()
        return self._metrics_result()

    def predict_step(self, data: Any) -> Any:
        """The outputs of a batch."""
        x, _, _ = keras.utils.unpack_x_y_sample_weight(data)
        return self._pipeline.predict(self._pipeline.split_batch("predict", x))

    def _loss_scale(self) -> Number:
        scale = 1.0 if self.optimizer is None else self.optimizer.scale_loss(1.0)
        return scale if isinstance(scale, (float, tf.Tensor)) else tf.convert_to_tensor(scale)

    def _track_loss(self, loss: tf.Tensor, batch: Batch) -> None:
        with tf.device(self.devices[-1]):  # Beside the last stage, where the loss is.
            size = as_tensor(batch.sizes.batch, keras.backend.floatx())
            self.loss_tracker.update_state(loss, sample_weight=size)

    def _metrics_result(self) -> Any:
        with tf.device(self.devices[-1]):
            return self.get_metrics_result()

    def call(self, inputs: Any, training: bool = False) -> Any:
        """Runs the layers stage by stage, each on its device, without micro-batches."""
        calls = self._pipeline.calls
        values = dict(zip(calls.inputs, calls.standardize(inputs)))
        for stage in self.stages:
            with tf.device(stage.device):
                for call in stage.calls:
                    read = [values[number] for number in call.inputs]
                    values.update(zip(call.outputs, call.run(read, training)))
        return calls.pack_outputs([values[number] for number in calls.outputs])

    def verify(self, x: Any, y: Any = None, sample_weight: Any = None) -> VerifyReport:
        """Compares one split step with plain Keras's, from the same state.

        Plain Keras takes the step twice: on the whole batch, and on the same micro-batches one by
        one. Nothing is changed by it: no weight, no statistic, no seed, no metric.

        Args:
            x: A batch of inputs.
            y: Its targets.
            sample_weight: Optional weights of its samples.

        Returns:
            A `VerifyReport` with the largest differences of the loss and of every variable's
            gradient, in both comparisons. Printed, it is a table.
        """
        self.check_compiled("verify")
        verifier = Verifier(self.model, self._pipeline, self._compiled, self.trainable_weights)
        return verifier.verify(x, y, sample_weight, scale=self._loss_scale(), metrics=self.metrics)

    def measure(self, num_samples: int) -> tuple[Costs, StageBytes]:
        """Measures the time and memory of a micro-batch in each stage, one stage at a time.

        `replay(split.schedule, costs)` then predicts a step on devices that each work as fast as
        this one does alone, and its `peak_memory(sizes)` the memory. Call `fit` first.

        Args:
            num_samples: Integer. The size of the micro-batch.

        Returns:
            A pair: `Costs` in seconds, and `StageBytes`. What loops keep, as in recurrent
            layers, is not counted among the bytes.
        """
        costs, sizes = self._pipeline.measure(num_samples)
        warn_of_short_stages(costs, self.devices)
        return costs, sizes

    def profile(self, x: Any, y: Any = None, sample_weight: Any = None) -> MeasuredStep:
        """Runs a training step under TensorFlow's profiler, and undoes it.

        Needs several micro-batches, and steps that are not run eagerly.

        Args:
            x: A batch of inputs.
            y: Its targets.
            sample_weight: Optional weights of its samples.

        Returns:
            A `MeasuredStep`: when each op of the schedule ran (`.timeline`, in the same form as a
            predicted one), how busy each device was, how long transfers took, and the timeline
            `.predicted` for the same schedule with these costs.
        """
        from keras_mgpu.profiling.measured_timeline import profile_step

        self.check_compiled("profile")
        return profile_step(self, x, y, sample_weight)

    # Passed on to the model inside.

    @property
    def layers(self) -> list[keras.Layer]:
        return list(self.model.layers)

    def get_layer(self, name: str | None = None, index: int | None = None) -> keras.Layer:
        return self.model.get_layer(name=name, index=index)

    def summary(self, *args: Any, **kwargs: Any) -> None:
        """Prints the summary of the model inside."""
        self.model.summary(*args, **kwargs)

    def save(
        self, filepath: Any, overwrite: bool = True, zipped: bool | None = None, **kwargs: Any
    ) -> None:
        """Saves the plain model with compile settings and optimizer state.

        `keras.models.load_model` opens the file without this package.
        """
        self.model.save(filepath, overwrite=overwrite, zipped=zipped, **kwargs)

    def save_weights(self, *args: Any, **kwargs: Any) -> None:
        self.model.save_weights(*args, **kwargs)

    def load_weights(self, *args: Any, **kwargs: Any) -> None:
        self.model.load_weights(*args, **kwargs)

    def export(self, *args: Any, **kwargs: Any) -> None:
        """Exports the plain model for inference."""
        self.model.export(*args, **kwargs)

    def to_json(self, **kwargs: Any) -> str:
        return str(self.model.to_json(**kwargs))

    def get_config(self) -> dict[str, Any]:
        raise ValueError(
            "A PipelineSplit cannot be serialized: it saves the plain model inside. Use "
            '`split.save("model.keras")`, or pass `split.model` where a Keras model is expected.'
        )


def _as_calls(model: Any) -> tuple[keras.Model, LayerCalls]:
    """The model as a flat list of calls; of a list of stages also a plain model that holds them."""
    if isinstance(model, PipelineSplit):
        raise ValueError(
            "`model` is a PipelineSplit already. Split the plain model inside it instead: "
            f"`PipelineSplit(split.model, ...)`. Received: model={model!r}"
        )
    if isinstance(model, (list, tuple)):
        validation.check_stage_list(model)
        return keras.Sequential(list(model)), layer_calls.from_stages(model)
    calls = planning.calls_of(model)
    split_by = _split_by(model)
    if split_by is not None:
        raise ValueError(
            f"The model '{model.name}' is already split, by '{split_by.name}' over "
            f"{', '.join(split_by.devices)}, which would keep training variables that have moved. "
            f"Delete that PipelineSplit first (`del split`). Received: model={model!r}"
        )
    return model, calls


def _split_by(model: keras.Model) -> PipelineSplit | None:
    """The wrapper that holds this model, if it is still in use."""
    reference = _splits.get(model)
    if reference is not None and reference() is not None:
        gc.collect()  # Keras models hold themselves: `del` alone does not end one.
    return None if reference is None else reference()


def _place(model: keras.Model, stages: Sequence[Stage]) -> None:
    """Moves the weights to their stages, and what the optimizer has for them; or nothing at all."""
    optimizer = model.optimizer if model.compiled else None
    has_slots = optimizer is not None and optimizer.built
    slots = optimizer_slots.slot_loads(optimizer, stages) if has_slots else []
    place([*weight_loads(stages), *slots])


def _warn_of_norms(pipeline: Pipeline) -> None:
    if pipeline.schedule.num_micro_batches == 1:
        return
    layers = unique(layer for stage in pipeline.stages for layer in stage.sublayers)
    kind = keras.layers.BatchNormalization
    names = [layer.name for layer in layers if isinstance(layer, kind) and layer.trainable]
    if names:
        warnings.warn(
            "Batch normalization uses the mean and variance of each micro-batch during training, "
            f"not those of the whole batch, in {fold_names(names, 'layers')}. Layer or group "
            "normalization does not depend on the batch. With `micro_batches=1` the layers "
            "normalize as in plain Keras.",
            stacklevel=3,
        )
