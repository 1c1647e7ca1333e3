"""What `compile` makes of losses and metrics."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf
from keras import tree
from keras.src import backend
from keras.src.losses.loss import apply_mask
from keras.src.trainers.compile_utils import CompileLoss

from keras_mgpu.internals.keras_graph import symbolic

__all__ = ["apply_mask"]


def compiled_loss_of(model: keras.Model) -> CompileLoss | None:
    """All losses given to `compile`, as one object."""
    return model._compile_loss


def compiled_metrics_of(model: keras.Model) -> Any:
    """All metrics given to `compile`, as one object, or `None`."""
    return model._compile_metrics


def build_losses_and_metrics(
    model: keras.Model, x: Any, y: Any, y_pred: Any, sample_weight: Any
) -> None:
    """Makes what `compile` left to the first batch, without running anything."""
    x, y, y_pred, sample_weight = (
        tree.map_structure(symbolic, value) for value in (x, y, y_pred, sample_weight)
    )
    loss, metrics = compiled_loss_of(model), compiled_metrics_of(model)
    if loss is not None and not loss.built:
        backend.compute_output_spec(loss, y, y_pred, sample_weight)
    if metrics is not None and not metrics.built:
        backend.compute_output_spec(metrics.update_state, y, y_pred, sample_weight)


def loss_tracker_of(model: keras.Model) -> Any:
    """The metric that averages the loss over an epoch."""
    return model._loss_tracker


def loss_entries(compile_loss: CompileLoss) -> list[tuple[Any, Any]]:
    """Each loss of a built `CompileLoss`, and the metric that tracks it or `None`."""
    metrics = compile_loss.metrics or [None] * len(compile_loss._flat_losses)
    return list(zip(compile_loss._flat_losses, metrics))


def recorded_losses(
    compile_loss: CompileLoss, y_true: Any, y_pred: Any, sample_weight: Any
) -> list[tuple[Any, Any, Any]]:
    """What `CompileLoss` would give to each of its losses: labels, predictions, weights."""
    recorded: list[tuple[Any, Any, Any]] = []

    def record(*arguments: Any) -> Any:
        recorded.append(arguments)
        return tf.zeros(())

    entries = compile_loss._flat_losses
    compile_loss._flat_losses = [entry._replace(loss=record) for entry in entries]
    try:
        with keras.StatelessScope():  # The metrics of single losses must not count this.
            compile_loss(y_true, y_pred, sample_weight)
    finally:
        compile_loss._flat_losses = entries
    # Of several losses for one lone output, Keras minimizes the first.
    is_lone = not tree.is_nested(y_true) and not tree.is_nested(y_pred)
    return recorded[:1] if is_lone else recorded
