"""What layers assign while they are called, caught instead of carried out."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import keras
import tensorflow as tf

from keras_mgpu.internals.identity import IdentityMap, IdentitySet


class AssignmentScope(keras.StatelessScope):
    """Catches what layers assign, and remembers which variables they read and assigned.

    Args:
        values: Variables that have another value inside, each with that value.
    """

    def __init__(self, values: Iterable[tuple[keras.Variable, Any]] = ()) -> None:
        super().__init__(list(values), collect_losses=True)
        self.assigned: IdentityMap[keras.Variable, Any] = IdentityMap()
        self.read: IdentitySet[keras.Variable] = IdentitySet()

    def get_current_value(self, variable: keras.Variable) -> Any:
        self.read.add(variable)
        return super().get_current_value(variable)

    def add_update(self, update: tuple[keras.Variable, Any]) -> None:
        variable, value = update
        self.assigned[variable] = value
        if variable.trainable:
            # A weight that is read after an assignment has its gradient at the read: it must not
            # flow back through what was assigned.
            read = tf.convert_to_tensor(variable.value)
            value = tf.stop_gradient(value) + (read - tf.stop_gradient(read))
        super().add_update((variable, value))


class FixedValues(keras.StatelessScope):
    """Some variables are read as these tensors; all others are read and assigned as ever.

    Args:
        values: Variables, each with what stands for it.
    """

    def __init__(self, values: Iterable[tuple[keras.Variable, Any]]) -> None:
        super().__init__(list(values))

    def add_update(self, update: tuple[keras.Variable, Any]) -> None:
        variable, value = update
        variable._direct_assign(value)


@contextlib.contextmanager
def made_before_tracing() -> Iterator[None]:
    """For making variables inside a trace as if before it: else TensorFlow traces it twice."""

    def create(next_creator: Callable[..., Any], **options: Any) -> Any:
        return next_creator(**options | {"experimental_enable_variable_lifting": False})

    with tf.init_scope(), tf.variable_creator_scope(create):
        yield
