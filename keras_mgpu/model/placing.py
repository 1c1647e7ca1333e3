"""Moves variables to devices, all of them or none.

Layers, optimizers and metrics hold Keras variables, which stay the same objects: each is given
another `tf.Variable`. All of those are made before the first is put in place, so that a device
that runs out of memory leaves everything as it was.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import keras
import tensorflow as tf

from keras_mgpu.internals.identity import IdentityMap
from keras_mgpu.internals.keras_variables import move_variable, tf_variable
from keras_mgpu.model.memory_errors import Demand, Item, OutOfMemoryError, check_room, naming
from keras_mgpu.system import memory
from keras_mgpu.system.devices import kind_of

logger = logging.getLogger("keras_mgpu")


@dataclass(frozen=True, eq=False)
class Load:
    """Variables that go to a device together.

    Attributes:
        what: Such as `"the weights of stage 1 (dense)"`.
        device: Where they go.
        variables: The variables.
        helps: What helps if there is no room for them.
    """

    what: str
    device: str
    variables: Sequence[keras.Variable]
    helps: str

    @property
    def demand(self) -> Demand:
        items = [item_of(variable) for variable in self.variables]
        return Demand(f"placing {self.what}", self.device, items, self.helps, "Nothing was moved.")


def place(loads: Iterable[Load]) -> None:
    """Moves variables to their devices, those that are not there yet.

    Raises:
        OutOfMemoryError: If a device has no room for them. Then nothing has moved.
    """
    absent = [replace(load, variables=_not_there(load)) for load in loads]
    moving = [load for load in absent if load.variables]
    demands = [load.demand for load in moving]
    try:
        check_room(demands)
    except OutOfMemoryError:
        # Some may be on their way from one full device to another.
        leaving = [v for load in moving for v in load.variables if _is_on_gpu(v)]
        if not leaving:
            raise
        with _in_host_memory(leaving) as values:
            check_room(demands)
            _move(moving, values)
    else:
        _move(moving, IdentityMap())


def copy_to(variable: keras.Variable, device: str, value: tf.Tensor | None = None) -> tf.Variable:
    """Returns a `tf.Variable` on `device` in place of the one in a Keras variable.

    Args:
        variable: The Keras variable.
        device: Where to make it.
        value: Its value. Defaults to that of the Keras variable.
    """
    old = tf_variable(variable)
    with tf.device(device):
        return tf.Variable(
            memory.read(old) if value is None else memory.to_be_copied(value),
            dtype=old.dtype,
            trainable=old.trainable,
            name=variable.name,
            aggregation=old.aggregation,
            synchronization=old.synchronization,
        )


def item_of(variable: keras.Variable) -> Item:
    """A Keras variable as something that takes memory."""
    value = tf_variable(variable)
    return Item(variable.path, memory.num_bytes_of(value), value.dtype)


def _move(loads: Sequence[Load], values: IdentityMap[keras.Variable, tf.Tensor]) -> None:
    """Makes all new variables, then puts them in place.

    Args:
        loads: What goes where.
        values: The values of variables that do not have them at the moment.
    """
    before = {load.device: memory.memory_of(load.device) for load in loads}
    # Small ones first. TensorFlow does not divide a free piece of memory of which less than half
    # is asked for: behind a large variable, all the rest might be lost.
    moves = [(item_of(variable), variable, load) for load in loads for variable in load.variables]
    moves.sort(key=lambda move: move[0].num_bytes)
    made: list[tf.Variable] = []
    try:
        for item, variable, load in moves:
            with naming(load.demand, item, before[load.device]):
                made.append(copy_to(variable, load.device, values.get(variable)))
    except BaseException:
        made.clear()  # Else the error would hold their memory, as long as somebody holds it.
        raise
    for (_, variable, _), value in zip(moves, made):
        move_variable(variable, value)


@contextlib.contextmanager
def _in_host_memory(
    variables: Sequence[keras.Variable],
) -> Iterator[IdentityMap[keras.Variable, tf.Tensor]]:
    """Lets variables give up their memory on devices. They get it back if an error is raised.

    Yields:
        Their values.
    """
    values: IdentityMap[keras.Variable, tf.Tensor] = IdentityMap()
    try:
        for variable in sorted(variables, key=lambda each: item_of(each).num_bytes):
            values[variable] = memory.take(tf_variable(variable))
        yield values
    except BaseException:
        for variable, value in values.items():
            _put_back(variable, value)
        raise


def _put_back(variable: keras.Variable, value: tf.Tensor) -> None:
    try:
        memory.put(tf_variable(variable), value)
    except tf.errors.OpError:  # Free memory is in other pieces now. No value must be lost.
        logger.warning("There is no room any more for %s: it stays on the host.", variable.path)
        move_variable(variable, copy_to(variable, memory.HOST, value))


def _not_there(load: Load) -> list[keras.Variable]:
    wanted = tf.DeviceSpec.from_string(load.device)

    def is_there(variable: keras.Variable) -> bool:
        found = tf.DeviceSpec.from_string(tf_variable(variable).device)
        return bool(found == found.make_merged_spec(wanted))

    return [variable for variable in load.variables if not is_there(variable)]


def _is_on_gpu(variable: keras.Variable) -> bool:
    return kind_of(tf_variable(variable).device) == "GPU"
