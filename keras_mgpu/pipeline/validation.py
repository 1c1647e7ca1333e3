"""What `PipelineSplit` refuses, and what it says: every check runs before anything is moved."""

from __future__ import annotations

import numbers
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from keras_mgpu.blueprint import named_schedules
from keras_mgpu.blueprint.schedule import Schedule
from keras_mgpu.internals.keras_graph import Functional
from keras_mgpu.internals.keras_training import strategy_of
from keras_mgpu.model.stages import Stage

FORMS = (
    "These forms can be split: a `keras.Sequential` model, a Functional model "
    "(`keras.Model(inputs, outputs)`), or a list of layers or models of any kind, one a stage, "
    "each of which takes what the one before it returns: "
    "`PipelineSplit([first_half, second_half], devices=[...])`."
)
BATCH_NORM = ("deferred", "micro_batch")

# Methods that make up training in Keras. A model that brings its own means something by it that a
# pipeline, which trains in another way, would silently leave out.
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
    """The backend must be TensorFlow, and no strategy in scope."""
    if keras.backend.backend() != "tensorflow":
        raise ValueError(
            "PipelineSplit needs Keras's TensorFlow backend. Set the environment variable "
            "KERAS_BACKEND=tensorflow before Keras is imported. "
            f"Received: backend={keras.backend.backend()!r}"
        )
    check_no_strategy()


def check_no_strategy() -> None:
    """A strategy's scope would make variables that are no single device's."""
    if tf.distribute.has_strategy():
        raise ValueError(
            "PipelineSplit places variables itself and cannot be made, compiled or trained inside "
            "a `tf.distribute` strategy's scope. Leave `strategy.scope()` out. "
            f"Received: strategy={type(tf.distribute.get_strategy()).__name__}"
        )


def check_model(model: Any) -> None:
    """It must be a built model whose training is Keras's own."""
    if not isinstance(model, keras.Model):
        raise TypeError(
            f"`model` is nothing that can be split. {FORMS} "
            f"Received: model={model!r} (of type {type(model).__name__})"
        )
    if strategy_of(model) is not None:
        raise ValueError(
            f"The model '{model.name}' was made inside a `tf.distribute` strategy's scope, which "
            "decides where its variables live. Make it outside. "
            f"Received: strategy={type(strategy_of(model)).__name__}"
        )
    check_training_is_keras_own(model)
    if not model.built:
        raise ValueError(
            f"The model '{model.name}' is not built: its layers have no variables yet. Start it "
            "with `keras.Input(shape)`, or call `model.build((None, ...))` with the shape of a "
            'batch, or call it once on some data. Under `tf.device("/CPU:0")` its variables '
            f"are made on the host and need not fit one GPU. Received: model={model!r}"
        )


def check_no_new_weights(model: keras.Model, stages: Sequence[Stage]) -> None:
    """A weight that came after the split, as an adapter does, has no device and no gradient."""
    new = [weight.path for stage in stages for weight in stage.new_weights]
    if new:
        raise ValueError(
            f"The model '{model.name}' has weights that it did not have when it was split: "
            f"{', '.join(new)}. Split it anew: `del split`, then `PipelineSplit(model, ...)`."
        )


def check_training_is_keras_own(model: keras.Model) -> None:
    """Refuses a model that trains, or runs, in a way of its own."""
    kind = type(model)
    own = [n for n in TRAINING_METHODS if getattr(kind, n) is not getattr(keras.Model, n)]
    if own:
        raise ValueError(
            f"The model '{model.name}' (of type {type(model).__name__}) brings its own "
            f"{', '.join(f'`{name}`' for name in own)}, which a pipeline would not call. Give "
            "the loss to `compile(loss=...)` and metrics to `compile(metrics=...)` or "
            f"`add_loss`, and split the plain model. Received: model={model!r}"
        )


def not_splittable(model: keras.Model) -> ValueError:
    """The error for a model whose layers are only known to its own Python code."""
    if isinstance(model, (Functional, keras.Sequential)):
        why = "runs its layers in a `call` of its own, or could not be laid out as a graph"
    else:
        why = "is a subclassed model, whose layers only its own Python code knows"
    return ValueError(
        f"The model '{model.name}' (of type {type(model).__name__}) cannot be split: it {why}. "
        f"{FORMS} Received: model={model!r}"
    )


def check_stage_list(layers: Sequence[Any]) -> None:
    """A list of stages: built layers, each of them once."""
    if not layers:
        raise ValueError("A list of stages must have at least one layer. Received: model=[]")
    for layer in layers:
        if not isinstance(layer, keras.Layer):
            raise TypeError(
                "Each entry of a list of stages must be a Keras layer or model. "
                f"Received: {layer!r} (of type {type(layer).__name__})"
            )
        if not layer.built:
            raise ValueError(
                f"Stage '{layer.name}' is not built: it has no variables yet. Call the stages "
                "once, one behind the other, on a batch (`for stage in stages: x = stage(x)`), "
                f"or build each with `build(input_shape)`. Received: {layer!r}"
            )


def check_can_be_cut(layers: Sequence[keras.Layer], num_micro_batches: int) -> None:
    """A layer that keeps something for each place in the batch needs the batch whole."""
    stateful = [layer.name for layer in layers if getattr(layer, "stateful", False)]
    if stateful and num_micro_batches > 1:
        raise ValueError(
            f"The layer '{stateful[0]}' is stateful: it keeps a state for each sample of a batch, "
            "which micro-batches would mix up. Use `micro_batches=1`. "
            f"Received: micro_batches={num_micro_batches}"
        )


def check_options(micro_batches: Any, schedule: Any, batch_norm: Any, jit_compile: Any) -> None:
    """Options that need no model to be judged."""
    if not isinstance(jit_compile, bool):
        raise TypeError(
            "`jit_compile` must be `True` or `False`. "
            f"Received: jit_compile={jit_compile!r} (of type {type(jit_compile).__name__})"
        )
    if micro_batches is not None and (
        isinstance(micro_batches, bool) or not isinstance(micro_batches, numbers.Integral)
    ):
        raise TypeError(
            "`micro_batches` must be an integer, the number of pieces a batch is cut into. "
            f"Received: micro_batches={micro_batches!r} (of type {type(micro_batches).__name__})"
        )
    if micro_batches is not None and micro_batches < 1:
        raise ValueError(
            f"`micro_batches` must be at least 1. Received: micro_batches={micro_batches}"
        )
    if isinstance(schedule, str) and schedule not in named_schedules.SCHEDULES:
        raise ValueError(
            f"`schedule` must be one of {', '.join(map(repr, named_schedules.SCHEDULES))}, or one "
            "of your own: a `Schedule`, or a list with the ops of each device. "
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
