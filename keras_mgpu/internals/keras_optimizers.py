"""How Keras optimizers keep their slots, steps and variables."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import keras


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


@contextlib.contextmanager
def without_all_reduce(optimizer: Any) -> Iterator[None]:
    """Lets an optimizer take the gradients as they are.

    Keras sums them over replicas, and be there only one: all gradients go through a single op on
    a single device for that, and back.
    """
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    vars(inner)["_all_reduce_sum_gradients"] = list
    try:
        yield
    finally:
        del vars(inner)["_all_reduce_sum_gradients"]


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
