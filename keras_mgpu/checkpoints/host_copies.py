"""Copies variables to host memory, and back."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import tensorflow as tf

from keras_mgpu.internals.keras_variables import copies_of, value_of
from keras_mgpu.model.memory_errors import Demand, Item, naming
from keras_mgpu.system import memory
from keras_mgpu.system.devices import short

Variables = Mapping[str, Any]
_HELPS = "more devices, or `del` of other models on this one"
_AFTERMATH = "Variables before it are restored already; it and those after it are as they were."


def to_host(variables: Variables) -> dict[str, tf.Tensor]:
    """Copies the current values to host memory, from all devices in parallel.

    A variable in host memory is not copied: TensorFlow shares its buffer, and gives the variable
    another one with its next assignment.
    """
    by_device: dict[str, list[str]] = {}
    for key, variable in variables.items():
        by_device.setdefault(device_of(variable), []).append(key)

    def copy(keys: Sequence[str]) -> dict[str, tf.Tensor]:
        return {key: memory.to_host(value_of(variables[key])) for key in keys}

    if len(by_device) < 2:
        copies = [copy(keys) for keys in by_device.values()]
    else:
        with ThreadPoolExecutor(len(by_device)) as pool:
            copies = list(pool.map(copy, by_device.values()))
    return {key: tensor for each in copies for key, tensor in each.items()}


def device_of(variable: Any) -> str:
    """The device of a variable; with copies on several devices, that of the first."""
    return str(getattr(value_of(variable), "device", "") or "")


def copies_to_host(variables: Variables, worker: int) -> dict[str, tf.Tensor]:
    """Copies what each replica of this worker has, by worker, replica and key.

    Reading such a variable as a whole would need a collective operation of all workers.
    """
    with tf.device("/CPU:0"):
        return {
            f"workers/{worker}/{replica}/{key}": tf.identity(each)
            for key, variable in variables.items()
            for replica, each in enumerate(copies_of(variable))
        }


def assign(variables: Variables, tensors: Mapping[str, tf.Tensor]) -> None:
    """Assigns each variable the tensor of the same key, if shape and type match.

    Raises:
        OutOfMemoryError: If a device has no room for one. That one keeps its value.
    """
    for key, variable in variables.items():
        tensor = tensors.get(key)
        if tensor is not None and _fits(tensor, variable):
            with _naming(key, variable):
                memory.overwrite(value_of(variable), tensor)


def assign_copies(
    variables: Variables, tensors: Mapping[str, tf.Tensor], worker: int, num_workers: int
) -> list[str]:
    """Gives replicas what `copies_to_host` saved, if their number is the same.

    Returns:
        The keys of variables that were not assigned.
    """
    left = []
    for key, variable in variables.items():
        saved, replicas = _saved_copies(tensors, key, variable), copies_of(variable)
        mine = [saved.get(f"workers/{worker}/{index}/{key}") for index in range(len(replicas))]
        if len(saved) != num_workers * len(replicas) or None in mine:
            left.append(key)
            continue
        for replica, tensor in zip(replicas, mine):
            memory.overwrite(replica, tensor)
    return left


def assign_counts(
    metrics: Variables, tensors: Mapping[str, tf.Tensor], worker: int, num_workers: int
) -> None:
    """Lets metrics continue from the counts that `copies_to_host` saved.

    If the number of replicas is the same, each gets its own counts. Otherwise the first replica
    gets the sum of all, and the others start from zero.
    """
    for key in assign_copies(metrics, tensors, worker, num_workers):
        saved = _saved_copies(tensors, key, metrics[key])
        for index, replica in enumerate(copies_of(metrics[key]) if saved else ()):
            if worker == index == 0:
                replica.assign(tf.add_n(list(saved.values())))
            else:
                replica.assign(tf.zeros_like(replica))


def _naming(key: str, variable: Any) -> contextlib.AbstractContextManager[None]:
    """Errors say which variable there is no room for."""
    device, dtype = device_of(variable), tf.as_dtype(variable.dtype)
    item = Item(key, memory.num_bytes_of(variable), dtype)
    demand = Demand(f"restoring {key}", f"/{short(device)}", [item], _HELPS, _AFTERMATH)
    return naming(demand, item, memory.memory_of(device))


def _saved_copies(
    tensors: Mapping[str, tf.Tensor], key: str, variable: Any
) -> dict[str, tf.Tensor]:
    """What all replicas of all workers had for `key`; empty if it does not fit."""
    saved = {}
    for name, tensor in tensors.items():
        parts = name.split("/", 3)
        if parts[0] == "workers" and parts[-1] == key:
            saved[name] = tensor
    return saved if all(_fits(each, variable) for each in saved.values()) else {}


def _fits(tensor: tf.Tensor, variable: Any) -> bool:
    return tuple(tensor.shape) == tuple(variable.shape) and tensor.dtype == tf.as_dtype(
        variable.dtype
    )
