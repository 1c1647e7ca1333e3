"""Validates the arguments of `PipelineSplit`, before any variable is moved."""

from __future__ import annotations

import numbers
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from keras_mgpu.blueprint import named_schedules
from keras_mgpu.blueprint.schedule import Schedule
from keras_mgpu.internals.keras_graph import Functional
from keras_mgpu.internals.keras_training import (
    strategy_of,
    supports_open_batches_of_stateful_layers,
)
from keras_mgpu.model.stages import Stage

FORMS = (
    "Pass a `keras.Sequential` model, a Functional model (`keras.Model(inputs, outputs)`), or a "
    "list of layers or models of any kind, one per stage, each of which takes the output of the "
    "previous one: `PipelineSplit([first_half, second_half], devices=[...])`."
)
BATCH_NORM = ("deferred", "micro_batch")

# The methods that define training in Keras. If a model overrides one of them, a pipeline would
# silently ignore it.
TRAINING_METHODS = (
    "train_step",
    "test_step",
    "predict_step",
    "compute_loss",
    "compute_metrics",
    "make_train_function",
    "make_test_function",
    "make_predict_function",
    "fit",
    "evaluate",
    "predict",
)


def check_environment() -> None:
    """Checks that the backend is TensorFlow, and that no strategy is in scope."""
    if keras.backend.backend() != "tensorflow":
        raise ValueError(
            "`PipelineSplit` requires the TensorFlow backend of Keras. Set the environment "
            "variable KERAS_BACKEND=tensorflow before importing Keras. "
            f"Received: backend={keras.backend.backend()!r}"
        )
    check_no_strategy()


def check_no_strategy() -> None:
    """Checks that no strategy is in scope, which would create variables on several devices."""
    if tf.distribute.has_strategy():
        raise ValueError(
            "`PipelineSplit` places variables itself and cannot be created, compiled or trained "
            "inside the scope of a `tf.distribute` strategy. Remove `strategy.scope()`. "
            f"Received: strategy={type(tf.distribute.get_strategy()).__name__}"
        )


def check_model(model: Any) -> None:
    """Checks that a model is built, and that it does not override how Keras trains it."""
    if not isinstance(model, keras.Model):
        raise TypeError(
            f"`model` cannot be split. {FORMS} "
            f"Received: model={model!r} (of type {type(model).__name__})"
        )
    if strategy_of(model) is not None:
        raise ValueError(
            f"The model '{model.name}' was created inside the scope of a `tf.distribute` strategy, "
            "which places its variables. Create it outside of `strategy.scope()`. "
            f"Received: strategy={type(strategy_of(model)).__name__}"
        )
    check_training_is_keras_own(model)
    if not model.built:
        raise ValueError(
            f"The model '{model.name}' is not built, so its layers have no variables yet. Start it "
            "with `keras.Input(shape)`, call `model.build((None, ...))` with the shape of a batch, "
            'or call it once on some data. Under `tf.device("/CPU:0")`, its variables are created '
            f"in host memory and do not need to fit on one GPU. Received: model={model!r}"
        )


def check_no_new_weights(model: keras.Model, stages: Sequence[Stage]) -> None:
    """Checks that no weight was added after the split, such as an adapter: it would not train."""
    new = [weight.path for stage in stages for weight in stage.new_weights]
    if new:
        raise ValueError(
            f"The model '{model.name}' has weights that were added after it was split. Split it "
            "again: `del split`, then `PipelineSplit(model, ...)`. "
            f"Received: new weights {', '.join(new)}"
        )


def check_training_is_keras_own(model: keras.Model) -> None:
    """Checks that a model does not override the methods with which Keras trains it."""
    kind = type(model)
    own = [n for n in TRAINING_METHODS if getattr(kind, n) is not getattr(keras.Model, n)]
    if own:
        raise ValueError(
            f"The model '{model.name}' (of type {type(model).__name__}) overrides "
            f"{', '.join(f'`{name}`' for name in own)}, which a pipeline does not call. Split a "
            "plain model instead, and pass the loss to `compile(loss=...)` or `add_loss`, and "
            f"metrics to `compile(metrics=...)`. Received: model={model!r}"
        )


def not_splittable(model: keras.Model) -> ValueError:
    """Returns the error for a model without a graph of layers."""
    if isinstance(model, (Functional, keras.Sequential)):
        why = "it overrides `call`, or has no graph of layers"
    else:
        why = "it is a subclassed model, which has no graph of layers"
    return ValueError(
        f"The model '{model.name}' (of type {type(model).__name__}) cannot be split: {why}. "
        f"{FORMS} Received: model={model!r}"
    )


def check_stage_list(layers: Sequence[Any]) -> None:
    """Checks that a list of stages contains only built layers."""
    if not layers:
        raise ValueError("A list of stages must contain at least one layer. Received: model=[]")
    for layer in layers:
        if not isinstance(layer, keras.Layer):
            raise TypeError(
                "Each entry of a list of stages must be a Keras layer or model. "
                f"Received: {layer!r} (of type {type(layer).__name__})"
            )
        if not layer.built:
            raise ValueError(
                f"The stage '{layer.name}' is not built, so it has no variables yet. Call the "
                "stages once on a batch, one after the other (`for stage in stages: x = stage(x)`),"
                f" or build each one with `build(input_shape)`. Received: {layer!r}"
            )


def check_statelessness(layers: Sequence[keras.Layer], num_micro_batches: int) -> None:
    """Checks that no layer is stateful, which is incompatible with micro-batches."""
    stateful = [layer.name for layer in layers if getattr(layer, "stateful", False)]
    if stateful and num_micro_batches > 1:
        raise ValueError(
            f"The layer '{stateful[0]}' is stateful: it keeps a state for each sample of a batch, "
            "which is incompatible with micro-batches. Use `micro_batches=1`. "
            f"Received: micro_batches={num_micro_batches}"
        )
    if stateful and not supports_open_batches_of_stateful_layers():
        raise ValueError(
            f"The layer '{stateful[0]}' is stateful. Splitting stateful layers needs Keras 3.14 or "
            f"later: `pip install -U keras`. Received: keras.__version__={keras.__version__!r}"
        )


def check_options(micro_batches: Any, schedule: Any, batch_norm: Any, jit_compile: Any) -> None:
    """Checks the options that do not depend on the model."""
    if not isinstance(jit_compile, bool):
        raise TypeError(
            "`jit_compile` must be a boolean. "
            f"Received: jit_compile={jit_compile!r} (of type {type(jit_compile).__name__})"
        )
    if micro_batches is not None and (
        isinstance(micro_batches, bool) or not isinstance(micro_batches, numbers.Integral)
    ):
        raise TypeError(
            "`micro_batches` must be an integer, the number of micro-batches per batch. "
            f"Received: micro_batches={micro_batches!r} (of type {type(micro_batches).__name__})"
        )
    if micro_batches is not None and micro_batches < 1:
        raise ValueError(
            f"`micro_batches` must be at least 1. Received: micro_batches={micro_batches}"
        )
    if isinstance(schedule, str) and schedule not in named_schedules.SCHEDULES:
        raise ValueError(
            f"`schedule` must be one of {', '.join(map(repr, named_schedules.SCHEDULES))}, or a "
            "custom schedule: a `Schedule`, or a list with the ops of each device. "
            f"Received: schedule={schedule!r}"
        )
    if not isinstance(schedule, (str, Schedule, list, tuple)):
        raise TypeError(
            "`schedule` must be a name, a `Schedule`, or a list with the ops of each device, such "
            'as `["0F0 0F1 0B0 0B1", "1F0 1B0 1F1 1B1"]`. '
            f"Received: schedule={schedule!r} (of type {type(schedule).__name__})"
        )
    if batch_norm not in BATCH_NORM:
        raise ValueError(
            f"`batch_norm` must be one of {', '.join(map(repr, BATCH_NORM))}. "
            f"Received: batch_norm={batch_norm!r}"
        )
