"""Sums of gradients, dense and sparse, as TensorFlow's own tape would add them."""

from __future__ import annotations

import math
import uuid
import weakref
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import keras
import tensorflow as tf

from keras_mgpu.internals.identity import IdentityMap
from keras_mgpu.internals.tf_functions import KEEP_AS_CALL
from keras_mgpu.model.memory_errors import SMALLER_STAGES, Demand, Item, check_room, naming
from keras_mgpu.system.memory import memory_of

_HELPS = (
    f"{SMALLER_STAGES}; or weights that are not trained (`layer.trainable = False`), of which no "
    "gradient is kept. A smaller batch and `recompute` do not help: a gradient is as large as its "
    "weight"
)
_AFTERMATH = "No step was taken."

# Of a weight: a tensor, `tf.IndexedSlices` where only some rows have one, or nothing.
Gradient: TypeAlias = tf.Tensor | tf.IndexedSlices | None


class GradientSum:
    """The gradients of a stage's weights, summed over micro-batches."""

    def __init__(self, weights: Sequence[keras.Variable]) -> None:
        self._overwrites = [getattr(v, "overwrite_with_gradient", False) for v in weights]
        self._sparse: list[list[tf.IndexedSlices]] = [[] for _ in weights]
        self._dense: list[tf.Tensor | None] = [None for _ in weights]

    def add(self, gradients: Sequence[Gradient]) -> None:
        """Adds those of a micro-batch."""
        for index, gradient in enumerate(gradients):
            if isinstance(gradient, tf.IndexedSlices):
                self._sparse[index].append(gradient)
            elif gradient is not None:
                # fp8 scales come as gradients to be taken as they are: the newest counts.
                keep = self._dense[index] is None or self._overwrites[index]
                self._dense[index] = gradient if keep else self._dense[index] + gradient

    def total(self) -> list[Gradient]:
        return [add_gradients([*sparse, dense]) for sparse, dense in zip(self._sparse, self._dense)]


class GradientVariables:
    """Dense gradients of a stage's weights, summed in place on the stage's device.

    What runs for each micro-batch adds to them, so that nothing of a weight's size has to pass
    through the step for each of them. They are bare resources: a `tf.Variable` that is made while a
    step is traced makes TensorFlow trace the whole step twice.

    Args:
        device: The device of the stage.
        stage: The name of the stage.
    """

    def __init__(self, device: str, stage: str = "a stage") -> None:
        self._device = device
        self._stage = stage
        self._sums: IdentityMap[keras.Variable, _Sum] = IdentityMap()

    def add(self, weight: keras.Variable, gradient: tf.Tensor) -> tf.Operation:
        """Makes the op that adds a gradient."""
        if weight not in self._sums:
            self._sums[weight] = _Sum(weight.path, weight.shape, gradient.dtype, self._device)
        handle = self._sums[weight].handle
        # fp8 scales come as gradients to be taken as they are: the newest counts.
        if getattr(weight, "overwrite_with_gradient", False):
            return tf.raw_ops.AssignVariableOp(resource=handle, value=gradient)
        return tf.raw_ops.AssignAddVariableOp(resource=handle, value=gradient)

    def take_memory(self) -> None:
        """Takes the memory of all sums that have none yet.

        Raises:
            OutOfMemoryError: If the device has no room for them. Then none of them has any.
        """
        sums = sorted(self._sums.values(), key=lambda each: each.item.num_bytes)
        new = [each for each in sums if not each.has_memory]
        if not new:
            return
        task = f"making room for the sums of the gradients of {self._stage}"
        demand = Demand(task, self._device, [each.item for each in new], _HELPS, _AFTERMATH)
        check_room([demand])
        memory = memory_of(self._device)
        try:
            for each in new:
                with naming(demand, each.item, memory), tf.init_scope(), tf.device(self._device):
                    each.clear()
                each.has_memory = True
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        """Leaves all sums without memory until `take_memory`, or until a step begins."""
        for each in self._sums.values():
            with tf.init_scope(), tf.device(self._device):
                each.release()

    def clear(self) -> None:
        """Starts from zero, in a single call."""

        def clear_each() -> None:
            before: list[tf.Operation] = []
            for each in self._sums.values():  # One by one: each takes its memory twice meanwhile.
                with tf.control_dependencies(before):
                    before = [each.clear()]

        if self._sums:
            self._call(clear_each)

    def read(self, added: Sequence[tf.Tensor]) -> IdentityMap[keras.Variable, tf.Tensor]:
        """The sums of those weights to which something is ever added, in a single call.

        Args:
            added: What calls that add to them return. The sums are read after these.
        """

        def read_each(*added: tf.Tensor) -> list[tf.Tensor]:
            return [each.read() for each in self._sums.values()]

        if not self._sums:
            return IdentityMap()
        return IdentityMap(zip(self._sums, self._call(read_each, *added)))

    def _call(self, function: Callable[..., Any], *tensors: tf.Tensor) -> Any:
        """Calls a function on the device, in a single op of the step that is traced."""

        def body(*tensors: tf.Tensor) -> Any:
            with tf.device(self._device):
                return function(*tensors)

        with tf.device(self._device):
            return tf.function(body, autograph=False, **KEEP_AS_CALL)(*tensors)


class _Sum:
    """A tensor on a device that can be added to. It takes memory when it is cleared."""

    def __init__(self, name: str, shape: Sequence[int], dtype: tf.DType, device: str) -> None:
        self._shape, self._dtype = tuple(shape), dtype
        self.item = Item(name, math.prod(shape) * int(dtype.size), dtype)
        self.has_memory = False
        name = f"keras_mgpu_sum_{uuid.uuid4().hex}"
        with tf.init_scope(), tf.device(device):
            self.handle = tf.raw_ops.VarHandleOp(dtype=dtype, shape=shape, shared_name=name)
        weakref.finalize(self, _destroy, self.handle)

    def clear(self) -> tf.Operation | None:
        zeros = tf.zeros(self._shape, self._dtype)
        return tf.raw_ops.AssignVariableOp(resource=self.handle, value=zeros)

    def release(self) -> None:
        tf.raw_ops.AssignVariableOp(resource=self.handle, value=tf.zeros([0], self._dtype))
        self.has_memory = False

    def read(self) -> tf.Tensor:
        value = tf.raw_ops.ReadVariableOp(resource=self.handle, dtype=self._dtype)
        return tf.ensure_shape(value, self._shape)


def _destroy(handle: tf.Tensor) -> None:
    with tf.init_scope():
        tf.raw_ops.DestroyResourceOp(resource=handle)


def add_gradients(gradients: Sequence[Gradient]) -> Gradient:
    """Sums gradients as TensorFlow's tape does: sparse ones stay sparse if all are."""
    found = [gradient for gradient in gradients if gradient is not None]
    if len(found) < 2:
        return found[0] if found else None
    if all(isinstance(gradient, tf.IndexedSlices) for gradient in found):
        # As `int64`: GPUs would leave it to the host to put `int32` together.
        indices = [tf.cast(gradient.indices, tf.int64) for gradient in found]
        return tf.IndexedSlices(
            values=tf.concat([gradient.values for gradient in found], axis=0),
            indices=tf.concat(indices, axis=0),
            dense_shape=found[0].dense_shape,
        )
    return tf.add_n([tf.convert_to_tensor(gradient) for gradient in found])
