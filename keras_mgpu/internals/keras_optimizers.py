"""How Keras optimizers keep their slots, steps and variables."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from keras_mgpu.internals.keras_graph import no_automatic_dependency_tracking


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


def build_on(device: str, optimizer: Any, variables: Sequence[keras.Variable]) -> None:
    """Builds an optimizer with all of its slots on one device, wherever its variables are.

    Keras asks TensorFlow to put slots beside their variables, which depends on the strategy.
    """

    def create(next_creator: Callable[..., Any], **options: Any) -> Any:
        with tf.device(device):
            return next_creator(**options)

    with tf.init_scope(), tf.device(device), tf.variable_creator_scope(create):
        optimizer.build(list(variables))


@contextlib.contextmanager
def as_before_on_error(optimizer: Any) -> Iterator[None]:
    """An optimizer that is built inside is not built any more if an error leaves the scope."""
    inner = getattr(optimizer, "inner_optimizer", None)
    snapshots = [_Snapshot(each) for each in (optimizer, inner) if each is not None]
    try:
        yield
    except BaseException:
        for snapshot in snapshots:
            snapshot.restore()
        raise


class _Snapshot:
    """The attributes of an optimizer, and what is in those that can grow."""

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = optimizer
        self._attributes = dict(vars(optimizer))
        items = self._attributes.items()
        self._lists = {name: list(kept) for name, kept in items if isinstance(kept, list)}
        self._others = {name: kept.copy() for name, kept in items if isinstance(kept, (dict, set))}

    @no_automatic_dependency_tracking
    def restore(self) -> None:
        optimizer = self._optimizer
        vars(optimizer).clear()
        vars(optimizer).update(self._attributes)
        for name, before in self._others.items():
            kept = self._attributes[name]
            kept.clear()
            kept.update(before)
        for name, items in self._lists.items():
            if len(items) != len(self._attributes[name]):
                # A new list: TensorFlow does not save lists from which something was removed.
                setattr(optimizer, name, items)
        tracker = optimizer._tracker
        is_variable, _ = tracker.config["variables"]
        tracker.config["variables"] = is_variable, optimizer._variables
        tracker.stored_ids["variables"] = {id(variable) for variable in optimizer._variables}


# Runs a function on a device.
RunOn = Callable[[str, Callable[[], None]], None]


@contextlib.contextmanager
def updating_by_device(optimizer: Any, run_on: RunOn) -> Iterator[None]:
    """Lets an optimizer update its variables device by device, with gradients as they are.

    Keras sums gradients over replicas, and be there only one: all gradients go through a single op
    on a single device for that, and back. And it updates variable by variable, with a learning
    rate and a step that are computed anew for each.

    Args:
        optimizer: The optimizer, or one around it that scales the loss.
        run_on: Runs the updates of the variables of one device.
    """
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    decay, update = inner._apply_weight_decay, inner._distributed_tf_update_step

    def decay_by_device(variables: Sequence[Any]) -> None:
        for device, subset in _by_device(variables, lambda variable: variable).items():
            run_on(device, functools.partial(decay, subset))

    def update_by_device(distribution: Any, pairs: Sequence[Any], learning_rate: Any) -> None:
        for device, subset in _by_device(pairs, lambda pair: pair[1]).items():
            run_on(device, functools.partial(update, distribution, subset, learning_rate))

    replaced: dict[str, Any] = {
        "_all_reduce_sum_gradients": list,
        "_distributed_tf_update_step": update_by_device,
    }
    if getattr(inner, "weight_decay", None) is not None:
        replaced["_apply_weight_decay"] = decay_by_device
    vars(inner).update(replaced)
    try:
        yield
    finally:
        for name in replaced:
            del vars(inner)[name]


def _by_device(entries: Sequence[Any], variable_of: Callable[[Any], Any]) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for entry in entries:
        variable = variable_of(entry)
        value = variable.value if isinstance(variable, keras.Variable) else variable
        found.setdefault(value.device, []).append(entry)
    return found


def numbers_of(optimizer: Any) -> list[keras.Variable]:
    """The step and the learning rate, which updates read and never assign."""
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    rate = getattr(inner, "_learning_rate", None)
    return [inner._iterations, *([rate] if isinstance(rate, keras.Variable) else [])]


def rekey_optimizer(optimizer: Any) -> None:
    """Lets a built optimizer find its variables again after they have moved."""
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        rekey_optimizer(optimizer.inner_optimizer)
    variables = optimizer._trainable_variables
    optimizer._trainable_variables_indices = {
        optimizer._var_key(variable): index for index, variable in enumerate(variables)
    }


def optimizers_of(model: Any) -> dict[str, Any]:
    """Optimizers that a model keeps beside the compiled one, by the name of the attribute."""
    main = getattr(model, "optimizer", None)
    return {
        name: value
        for name, value in vars(model).items()
        if isinstance(value, keras.optimizers.Optimizer) and value is not main
    }


def optimizer_variables(optimizer: Any) -> list[keras.Variable]:
    """All variables of an optimizer, and of the one inside it."""
    inner = getattr(optimizer, "inner_optimizer", None)
    return [*optimizer.variables, *([] if inner is None else inner.variables)]


def steps_of(optimizer: Any) -> int:
    """Batches that an optimizer was given; 0 without one.

    With accumulated gradients Keras's `iterations` are updates, of which there are fewer.
    """
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    return 0 if inner is None else int(inner._iterations.numpy())
