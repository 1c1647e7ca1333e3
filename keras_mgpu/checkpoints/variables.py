"""A training run's variables by name, their way to host memory, and back.

A key is the path to a variable: the names of the layers that lead to it, and its own. Neither a
device nor a place in a list is in it, so that a checkpoint fits the same model on any devices.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from keras_mgpu.checkpoints.manifest import TensorEntry
from keras_mgpu.internals.keras_graph import flatten_layers
from keras_mgpu.internals.keras_optimizers import optimizer_variables, optimizers_of, slots_of
from keras_mgpu.internals.keras_variables import (
    copies_of,
    global_seed_state,
    lasting_name,
    own_state,
    value_of,
    variables_by_layer,
)
from keras_mgpu.model.split_model import unsplit

METRICS = "metrics/"
Variables = Mapping[str, Any]


def variables_of(model: Any, optimizer: Any = None) -> dict[str, Any]:
    """Weights, other state of layers, seeds and the optimizer's variables, by key."""
    named = _Named()
    for path, variable in variables_by_layer(unsplit(model)):
        named.add(f"model/{path}", variable)
    for variable in unsplit(model).variables:
        named.add(f"model/{variable.path}", variable)  # Those that belong to no layer, if any.
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
    """Of these, what Keras keeps for each replica by itself: statistics and seeds of layers."""
    layers = flatten_layers(unsplit(model))
    own = {id(variable) for layer in layers for variable in own_state(layer)}
    return {key: variable for key, variable in variables.items() if id(variable) in own}


def metric_variables_of(model: Any) -> dict[str, Any]:
    """The variables of the compiled metrics, by key."""
    named = _Named()
    for metric in getattr(model, "metrics", []):
        for variable in metric.variables:
            named.add(f"{METRICS}{metric.name}/{variable.name}", variable)
    return named.found


class _Named:
    """Variables by key, each once. Equal keys are numbered."""

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
        """The key of a variable of the model, without what all of them begin with."""
        return self._keys.get(id(variable), variable.path).removeprefix("model/")


def to_host(variables: Variables) -> dict[str, tf.Tensor]:
    """The values in host memory, as they are now; devices are copied from side by side.

    A variable in host memory is not copied: TensorFlow shares its buffer, and gives the variable
    another one when it is next assigned.
    """
    by_device: dict[str, list[str]] = {}
    for key, variable in variables.items():
        by_device.setdefault(device_of(variable), []).append(key)

    def copy(keys: Sequence[str]) -> dict[str, tf.Tensor]:
        with tf.device("/CPU:0"):
            return {key: tf.identity(value_of(variables[key])) for key in keys}

    if len(by_device) < 2:
        copies = [copy(keys) for keys in by_device.values()]
    else:
        with ThreadPoolExecutor(len(by_device)) as pool:
            copies = list(pool.map(copy, by_device.values()))
    return {key: tensor for each in copies for key, tensor in each.items()}


def device_of(variable: Any) -> str:
    """The device a variable lies on; of copies on several devices, that of the first."""
    return str(getattr(value_of(variable), "device", "") or "")


def copies_to_host(variables: Variables, worker: int) -> dict[str, tf.Tensor]:
    """What each replica of this worker has, by worker, replica and key.

    To read such a variable as a whole would make all workers talk to one another.
    """
    with tf.device("/CPU:0"):
        return {
            f"workers/{worker}/{replica}/{key}": tf.identity(each)
            for key, variable in variables.items()
            for replica, each in enumerate(copies_of(variable))
        }


def entries_of(tensors: Mapping[str, tf.Tensor]) -> Iterator[TensorEntry]:
    for key, tensor in tensors.items():
        yield TensorEntry(key, tuple(tensor.shape.as_list()), tensor.dtype.name)


@dataclass(frozen=True)
class Difference:
    """How a checkpoint and a model disagree.

    Args:
        missing: Keys that the model needs and the checkpoint does not have.
        unexpected: Keys that the checkpoint has and the model does not need.
        different: Keys of both, with what each of them has.
    """

    missing: tuple[str, ...]
    unexpected: tuple[str, ...]
    different: tuple[tuple[str, str], ...]

    def __bool__(self) -> bool:
        return bool(self.missing or self.unexpected or self.different)

    def __str__(self) -> str:
        different = [f"{key}: {what}" for key, what in self.different]
        kinds = {
            "missing in the checkpoint": self.missing,
            "unexpected in the checkpoint": self.unexpected,
            "different": different,
        }
        return "\n".join(
            line
            for kind, keys in kinds.items()
            if keys
            for line in [f"{kind} ({len(keys)}):", *(f"  {key}" for key in keys)]
        )


def difference(saved: Iterable[TensorEntry], variables: Variables) -> Difference:
    """Compares what a checkpoint has with what a model and its optimizer need."""
    there = {entry.key: entry for entry in saved if _is_variable(entry.key)}
    wanted = {
        key: TensorEntry(key, tuple(variable.shape), _dtype(variable))
        for key, variable in variables.items()
    }
    return Difference(
        tuple(key for key in wanted if key not in there),
        tuple(key for key in there if key not in wanted),
        tuple(
            (key, f"{_say(there[key])} in the checkpoint, {_say(entry)} in the model")
            for key, entry in wanted.items()
            if key in there and there[key] != entry
        ),
    )


def assign(variables: Variables, tensors: Mapping[str, tf.Tensor]) -> None:
    """Gives each variable the value of the same key, if there is one of its shape and type."""
    for key, variable in variables.items():
        tensor = tensors.get(key)
        if tensor is not None and _fits(tensor, variable):
            value_of(variable).assign(tensor)


def assign_copies(
    variables: Variables, tensors: Mapping[str, tf.Tensor], worker: int, num_workers: int
) -> list[str]:
    """Gives replicas back what `copies_to_host` saved, if there are as many as before.

    Returns:
        The keys of variables that this cannot be done for.
    """
    left = []
    for key, variable in variables.items():
        saved, replicas = _saved_copies(tensors, key, variable), copies_of(variable)
        mine = [saved.get(f"workers/{worker}/{index}/{key}") for index in range(len(replicas))]
        if len(saved) != num_workers * len(replicas) or None in mine:
            left.append(key)
            continue
        for replica, tensor in zip(replicas, mine):
            replica.assign(tensor)
    return left


def assign_counts(
    metrics: Variables, tensors: Mapping[str, tf.Tensor], worker: int, num_workers: int
) -> None:
    """Lets metrics go on from the counts that `copies_to_host` saved.

    As many replicas as before get their own counts back. Otherwise the first gets the sum of all,
    and the others begin at nothing.
    """
    for key in assign_copies(metrics, tensors, worker, num_workers):
        saved = _saved_copies(tensors, key, metrics[key])
        for index, replica in enumerate(copies_of(metrics[key]) if saved else ()):
            if worker == index == 0:
                replica.assign(tf.add_n(list(saved.values())))
            else:
                replica.assign(tf.zeros_like(replica))


def _saved_copies(
    tensors: Mapping[str, tf.Tensor], key: str, variable: Any
) -> dict[str, tf.Tensor]:
    """What all replicas of all workers had for `key`; nothing if that does not fit."""
    saved = {}
    for name, tensor in tensors.items():
        parts = name.split("/", 3)
        if parts[0] == "workers" and parts[-1] == key:
            saved[name] = tensor
    return saved if all(_fits(each, variable) for each in saved.values()) else {}


def _dtype(variable: Any) -> str:
    return tf.as_dtype(variable.dtype).name


def _fits(tensor: tf.Tensor, variable: Any) -> bool:
    return tuple(tensor.shape) == tuple(variable.shape) and tensor.dtype.name == _dtype(variable)


def _is_variable(key: str) -> bool:
    return key.startswith(("model/", "optimizer/", "optimizers/"))


def _say(entry: TensorEntry) -> str:
    return f"{entry.dtype}{list(entry.shape)}"
