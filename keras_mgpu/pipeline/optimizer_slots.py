"""Keeps optimizer slots on the devices of their variables, and updates them there.

Keras makes every momentum on the default device and leaves its arithmetic unplaced, so that the
first GPU of a split model fills up with the slots of all the others.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from keras_mgpu.internals.identity import IdentityMap, IdentitySet, unique
from keras_mgpu.internals.keras_optimizers import (
    as_before_on_error,
    build_on,
    numbers_of,
    optimizer_variables,
    rekey_optimizer,
    slots_of,
    updating_by_device,
)
from keras_mgpu.internals.keras_state import FixedValues
from keras_mgpu.internals.tf_functions import KEEP_AS_CALL, is_eager
from keras_mgpu.model.memory_errors import SMALLER_STAGES
from keras_mgpu.model.placing import Load, place
from keras_mgpu.model.stages import Stage
from keras_mgpu.system.devices import normalize

HOST = "/CPU:0"
_HELPS = (
    "an optimizer with fewer slots (Adam has two for each weight, Lion one, SGD without momentum "
    f"none); {SMALLER_STAGES}. A smaller batch and `recompute` do not help: slots are always there"
)


def build_beside(
    optimizer: Any, variables: Sequence[keras.Variable], stages: Sequence[Stage] = ()
) -> None:
    """Makes an optimizer's slots if they are not there, and puts each beside its variable.

    They are made on the host first: all of them together may not fit any one device.

    Args:
        optimizer: The optimizer.
        variables: What it trains.
        stages: The stages that the variables belong to.

    Raises:
        OutOfMemoryError: If a device has no room for them. Then the optimizer is as it was.
    """
    with as_before_on_error(optimizer):
        if not optimizer.built:
            build_on(HOST, optimizer, variables)
        place_slots(optimizer, stages)


def place_slots(optimizer: Any, stages: Sequence[Stage] = ()) -> None:
    """Moves the slots of a built optimizer to their variables' devices, or none of them.

    Its other variables, such as its step, go where the last stage is: beside the loss.
    """
    slots = IdentitySet(slot for _, slot in slots_of(optimizer))
    others = [v for v in unique(optimizer_variables(optimizer)) if v not in slots]
    what = f"the numbers of the optimizer {optimizer.name}"
    numbers = [Load(what, stage.device, others, SMALLER_STAGES) for stage in stages[-1:]]
    with tf.init_scope():
        place([*slot_loads(optimizer, stages), *numbers])
    rekey_optimizer(optimizer)


def slot_loads(optimizer: Any, stages: Sequence[Stage]) -> list[Load]:
    """The slots of a built optimizer as what goes to the devices of stages.

    Slots of variables that no stage has go where their variables are.
    """
    homes = IdentityMap((variable, stage) for stage in stages for variable in stage.variables)
    by_stage: IdentityMap[Stage, list[keras.Variable]] = IdentityMap()
    by_device: dict[str, list[keras.Variable]] = {}
    for variable, slot in slots_of(optimizer):
        stage = homes.get(variable)
        if stage is None:
            by_device.setdefault(variable.value.device, []).append(slot)
        else:
            by_stage.setdefault(stage, []).append(slot)
    what = f"the slots of the optimizer {optimizer.name}"
    return [
        *(Load(f"{what} for {x.name}", x.device, slots, _HELPS) for x, slots in by_stage.items()),
        *(Load(what, normalize(device), slots, _HELPS) for device, slots in by_device.items()),
    ]


def apply_beside(
    optimizer: Any, gradients: Sequence[Any], variables: Sequence[keras.Variable]
) -> None:
    """Updates variables, each on its own device."""
    with updating_by_device(optimizer, _Updates(optimizer).run_on), _beside_inputs():
        optimizer.apply_gradients(zip(gradients, variables))


class _Updates:
    """The updates of a step: one function per device, for TensorFlow to optimize as a whole.

    What all of its variables need, such as powers of the step, is then computed once.

    Args:
        optimizer: The optimizer.
    """

    def __init__(self, optimizer: Any) -> None:
        self._numbers = numbers_of(optimizer)

    def run_on(self, device: str, update: Callable[[], None]) -> None:
        if tf.executing_eagerly():
            update()
            return
        packed = self._packed

        def body() -> None:
            with tf.device(device):
                values = tf.unstack(packed)
                read = [(v, tf.cast(x, v.dtype)) for v, x in zip(self._numbers, values)]
                with FixedValues(read):
                    update()

        with tf.device(device):
            tf.function(body, autograph=False, **KEEP_AS_CALL)()

    @functools.cached_property
    def _packed(self) -> tf.Tensor:
        """The numbers that all updates read, in a single tensor: a single copy to each device.

        As `float64`, which holds every step and learning rate exactly.
        """
        with tf.device(self._numbers[0].value.device):
            return tf.stack([tf.cast(number.value, tf.float64) for number in self._numbers])


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
            return str(op.device)
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
            return str(tensor.device)
        if tensor.op.type == "ReadVariableOp":  # TensorFlow builds reads outside any device scope.
            return str(tensor.op.device) or self._of_tensor(tensor.op.inputs[0])
        if tensor.op.type != "Placeholder" or tensor.op.device:
            return str(tensor.op.device)
        outer = self._outer(tensor)
        return "" if outer is None else self._of_tensor(outer)

    def _outer(self, tensor: Any) -> Any:
        known = self._captured.setdefault(tensor.graph, {})
        if tensor.name not in known:
            captures = getattr(tensor.graph, "captures", ())
            known.update((inner.name, outer) for outer, inner in captures)
            known.setdefault(tensor.name, None)
        return known[tensor.name]
