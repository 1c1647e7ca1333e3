"""Keeps optimizer slots on the devices of their variables, and updates them there.

Keras makes every momentum on the default device and leaves its arithmetic unplaced, so that the
first GPU of a split model fills up with the slots of all the others.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from keras_mgpu.internals.identity import IdentityMap
from keras_mgpu.internals.keras_optimizers import rekey_optimizer, slots_of, without_all_reduce
from keras_mgpu.internals.keras_variables import move_variable
from keras_mgpu.internals.tf_functions import is_eager
from keras_mgpu.model.stages import copy_to

HOST = "/CPU:0"


def build_beside(optimizer: Any, variables: Sequence[keras.Variable]) -> None:
    """Makes an optimizer's slots if they are not there, and puts each beside its variable.

    They are made on the host first: all of them together may not fit any one device.
    """
    if not optimizer.built:
        with tf.init_scope(), tf.device(HOST):
            optimizer.build(list(variables))
    place_slots(optimizer)


def place_slots(optimizer: Any) -> None:
    """Moves the slots of a built optimizer to their variables' devices."""
    with tf.init_scope():
        moves = [
            (slot, copy_to(slot, variable.value.device))
            for variable, slot in slots_of(optimizer)
            if slot.value.device != variable.value.device
        ]
        for slot, value in moves:
            move_variable(slot, value)
    rekey_optimizer(optimizer)


def apply_beside(
    optimizer: Any, gradients: Sequence[Any], variables: Sequence[keras.Variable]
) -> None:
    """Updates variables, each on its own device."""
    with without_all_reduce(optimizer), _beside_inputs():
        optimizer.apply_gradients(zip(gradients, variables))


@contextlib.contextmanager
def _beside_inputs() -> Iterator[None]:
    """Ops built inside go to the device of the variable, slot or gradient that they work on.

    Without it, TensorFlow sends arithmetic that names no device to the first GPU. Eager ops follow
    their variables' devices only where they touch one.
    """
    if tf.executing_eagerly():
        yield
        return
    with tf.compat.v1.device(_InputsDevices().of_op):
        yield


class _InputsDevices:
    """Finds where an op's inputs are. Remembers captures, of which a graph may have thousands."""

    def __init__(self) -> None:
        self._captured: IdentityMap[Any, dict[str, Any]] = IdentityMap()

    def of_op(self, op: Any) -> str:
        """The device of the variable an op touches, else of what it reads.

        Scalars, such as a learning rate, go along with the rest.
        """
        if op.device:
            return op.device
        found = ""
        for tensor in op.inputs:
            device = self._of_tensor(tensor)
            if device and tensor.dtype == tf.resource:
                return device
            if device and tensor.shape.rank != 0:
                found = found or device
        return found

    def _of_tensor(self, tensor: Any) -> str:
        """Where a tensor is made; of one captured from outside a function, where it comes from."""
        if is_eager(tensor):
            return tensor.device
        if tensor.op.type == "ReadVariableOp":  # TensorFlow builds reads outside any device scope.
            return tensor.op.device or self._of_tensor(tensor.op.inputs[0])
        if tensor.op.type != "Placeholder" or tensor.op.device:
            return tensor.op.device
        outer = self._outer(tensor)
        return "" if outer is None else self._of_tensor(outer)

    def _outer(self, tensor: Any) -> Any:
        known = self._captured.setdefault(tensor.graph, {})
        if tensor.name not in known:
            captures = getattr(tensor.graph, "captures", ())
            known.update((inner.name, outer) for outer, inner in captures)
            known.setdefault(tensor.name, None)
        return known[tensor.name]
