"""The variables of a training run, by key.

A key is the path to a variable: the names of the layers around it, and its own name. It contains
neither a device nor an index in a list, so a checkpoint fits the same model on any devices.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from keras_mgpu.internals.keras_graph import flatten_layers
from keras_mgpu.internals.keras_optimizers import optimizer_variables, optimizers_of, slots_of
from keras_mgpu.internals.keras_variables import (
    global_seed_state,
    lasting_name,
    own_state,
    variables_by_layer,
)
from keras_mgpu.model.split_model import unsplit

METRICS = "metrics/"
Variables = Mapping[str, Any]


def variables_of(model: Any, optimizer: Any = None) -> dict[str, Any]:
    """Weights, other state of layers, seeds, and the variables of optimizers."""
    named = _Named()
    for path, variable in variables_by_layer(unsplit(model)):
        named.add(f"model/{path}", variable)
    for variable in unsplit(model).variables:
        named.add(f"model/{variable.path}", variable)  # Those outside of layers.
    others = {f"optimizers/{name}": each for name, each in optimizers_of(unsplit(model)).items()}
    for prefix, each in {"optimizer": optimizer, **others}.items():
        if each is None:
            continue
        for variable, slot in slots_of(each) if each.built else ():
            kind = slot.name.removeprefix(variable.path.replace("/", "_") + "_")
            named.add(f"{prefix}/{kind}/{named.key_of(variable)}", slot)
        for variable in optimizer_variables(each):
            named.add(f"{prefix}/{lasting_name(variable)}", variable)
    seed = global_seed_state()
    if seed is not None:
        named.add("seeds/global", seed)
    return named.found


def replica_state_of(model: Any, variables: Variables) -> dict[str, Any]:
    """The variables that Keras keeps separately per replica: statistics and seeds of layers."""
    layers = flatten_layers(unsplit(model))
    own = {id(variable) for layer in layers for variable in own_state(layer)}
    return {key: variable for key, variable in variables.items() if id(variable) in own}


def metric_variables_of(model: Any) -> dict[str, Any]:
    """The variables of the compiled metrics."""
    named = _Named()
    for metric in getattr(model, "metrics", []):
        for variable in metric.variables:
            named.add(f"{METRICS}{metric.name}/{variable.name}", variable)
    return named.found


class _Named:
    """Variables by key, without duplicates. Equal keys are numbered."""

    def __init__(self) -> None:
        self.found: dict[str, Any] = {}
        self._keys: dict[int, str] = {}

    def add(self, key: str, variable: Any) -> None:
        if id(variable) in self._keys:
            return
        unique, number = key, 1
        while unique in self.found:
            number += 1
            unique = f"{key}#{number}"
        self.found[unique] = variable
        self._keys[id(variable)] = unique

    def key_of(self, variable: Any) -> str:
        """The key of a variable of the model, without its first part."""
        return self._keys.get(id(variable), str(variable.path)).removeprefix("model/")
