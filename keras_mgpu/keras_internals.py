"""Every private name of Keras this package leans on, in one place.

Keras has no public way to walk a model's graph, to carry a mask over a function boundary or to move
a variable to another device. When a new Keras release breaks one of these, it breaks here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf
from keras import tree
from keras.src import backend
from keras.src.losses.loss import apply_mask
from keras.src.models.functional import Functional
from keras.src.trainers.compile_utils import CompileLoss
from keras.src.utils.tracking import no_automatic_dependency_tracking

__all__ = ["Functional", "apply_mask", "no_automatic_dependency_tracking"]


def graph_of(layer: Any) -> Functional | None:
    """The Functional graph that calling `layer` runs, or `None` if it runs code of its own."""
    if isinstance(layer, keras.Sequential):
        return layer._functional if type(layer).call is keras.Sequential.call else None
    if isinstance(layer, Functional) and type(layer).call is Functional.call:
        return layer
    return None


def nodes_in_order(graph: Functional) -> Iterator[Any]:
    """The calls of a graph in the order in which Keras runs them, inputs left out."""
    for depth in sorted(graph._nodes_by_depth, reverse=True):
        for node in graph._nodes_by_depth[depth]:
            if node.operation is not None and not node.is_input:
                yield node


def get_mask(tensor: Any) -> Any:
    """The mask Keras attached to a tensor, or `None`."""
    return backend.get_keras_mask(tensor)


def set_mask(tensor: Any, mask: Any) -> None:
    """Attaches a mask to a tensor, as Keras's layers do."""
    backend.set_keras_mask(tensor, mask)


def move_variable(variable: keras.Variable, value: tf.Variable) -> None:
    """Lets a Keras variable live in another `tf.Variable`, on another device.

    The Keras object stays the same, so layers, optimizers and savers notice nothing.
    """
    variable._value = value


def own_state(layer: keras.Layer) -> list[keras.Variable]:
    """What calling this one layer (not its sublayers) may assign: statistics, seeds, metrics.

    A frozen weight is not among them: it was made trainable, and no call assigns it.
    """
    state = list(layer._non_trainable_variables)
    state += [generator.state for generator in layer._seed_generators]
    for metric in layer._metrics:
        state += metric.variables
    return state


def compute_output_spec(function: Any, inputs: Any) -> Any:
    """What a function of Keras layers would return for inputs like these, as symbolic tensors."""
    return backend.compute_output_spec(function, tree.map_structure(_symbolic, inputs))


def build_losses_and_metrics(
    model: keras.Model, x: Any, y: Any, y_pred: Any, sample_weight: Any
) -> None:
    """Makes what `compile` left to the first batch, without running anything."""
    symbolic = [tree.map_structure(_symbolic, value) for value in (x, y, y_pred, sample_weight)]
    x, y, y_pred, sample_weight = symbolic
    loss, metrics = model._compile_loss, model._compile_metrics
    if loss is not None and not loss.built:
        backend.compute_output_spec(loss, y, y_pred, sample_weight)
    if metrics is not None and not metrics.built:
        backend.compute_output_spec(metrics.update_state, y, y_pred, sample_weight)


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
        with keras.StatelessScope():  # The metrics of single losses shall not count this.
            compile_loss(y_true, y_pred, sample_weight)
    finally:
        compile_loss._flat_losses = entries
    # Of several losses for one lone output, Keras minimizes the first.
    is_lone = not tree.is_nested(y_true) and not tree.is_nested(y_pred)
    return recorded[:1] if is_lone else recorded


def _symbolic(tensor: Any) -> Any:
    if tensor is None:
        return None
    shape = tuple(tensor.shape)
    return keras.KerasTensor(shape, backend.standardize_dtype(tensor.dtype))


def slots_of(optimizer: Any) -> list[tuple[keras.Variable, keras.Variable]]:
    """Each slot of a built optimizer with the variable it belongs to.

    Every Keras optimizer keeps its slots in lists that have one entry for each variable.
    """
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        return slots_of(optimizer.inner_optimizer)
    variables = optimizer._trainable_variables
    found = []
    for name, kept in vars(optimizer).items():
        is_slots = isinstance(kept, list) and len(kept) == len(variables)
        if is_slots and name not in ("_variables", "_trainable_variables"):
            pairs = zip(variables, kept)
            found += [(v, slot) for v, slot in pairs if isinstance(slot, keras.Variable)]
    return found


def rekey_optimizer(optimizer: Any) -> None:
    """Lets a built optimizer find its variables again after they have moved."""
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        rekey_optimizer(optimizer.inner_optimizer)
    variables = optimizer._trainable_variables
    optimizer._trainable_variables_indices = {
        optimizer._var_key(variable): index for index, variable in enumerate(variables)
    }
