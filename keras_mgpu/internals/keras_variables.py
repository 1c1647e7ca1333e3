"""Where Keras keeps variables and masks, and how a variable is moved to another device."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf
from keras import tree
from keras.src.backend.common import global_state
from keras.src.utils.naming import to_snake_case

from keras_mgpu.internals.keras_graph import sublayers_of


def move_variable(variable: keras.Variable, value: tf.Variable) -> None:
    """Lets a Keras variable live in another `tf.Variable`, on another device.

    The Keras object stays the same, so layers, optimizers and savers notice nothing.
    """
    variable._value = value


def tf_variable(variable: keras.Variable) -> tf.Variable:
    """The TensorFlow variable a Keras variable lives in, whatever scope or autocast is active."""
    return variable._value


def value_of(variable: Any) -> Any:
    """The TensorFlow variable inside a Keras variable; itself, if it is one already."""
    return variable.value if isinstance(variable, keras.Variable) else variable


def copies_of(variable: Any) -> tuple[Any, ...]:
    """The variables of this process that a variable is made of: one for each replica, or itself."""
    return tuple(getattr(value_of(variable), "values", None) or (value_of(variable),))


def own_trainable(layer: Any) -> list[keras.Variable]:
    """The trainable and frozen weights of this one layer, not of its sublayers."""
    return list(layer._trainable_variables)


def own_non_trainable(layer: Any) -> list[keras.Variable]:
    """The weights of this one layer that were made as not trainable, such as statistics."""
    return list(layer._non_trainable_variables)


def own_weights(layer: Any) -> list[keras.Variable]:
    """The weights of this one layer, not of its sublayers."""
    return [*layer._trainable_variables, *layer._non_trainable_variables]


def own_state(layer: keras.Layer) -> list[keras.Variable]:
    """What calling this one layer (not its sublayers) may assign: statistics, seeds, metrics.

    A frozen weight is not among them: it was made trainable, and no call assigns it.
    """
    state = list(layer._non_trainable_variables)
    state += [generator.state for generator in layer._seed_generators]
    for metric in layer._metrics:
        state += metric.variables
    return state


def variables_by_layer(layer: Any, path: str = "") -> Iterator[tuple[str, keras.Variable]]:
    """Every variable below a layer, with the names of the layers that lead to it.

    `variable.path` will not do: it depends on how a layer came to be built, and begins with the
    name of the model or does not. A variable of a shared layer comes several times.
    """
    for variable in own_weights(layer):
        yield f"{path}{lasting_name(variable)}", variable
    for generator in layer._seed_generators:
        yield f"{path}seed", generator.state
    if isinstance(layer, keras.layers.RNN) and layer.stateful:
        for state in tree.flatten(layer.states or ()):
            yield f"{path}state", state
    below = sublayers_of(layer)
    for name, sublayer in zip(_lasting_names(below), below):
        yield from variables_by_layer(sublayer, f"{path}{name}/")


def lasting_name(variable: keras.Variable) -> str:
    """The name of a variable; `variable_7` was numbered by the process, and is `variable`."""
    return "variable" if re.fullmatch(r"variable_\d+", variable.name) else variable.name


def _lasting_names(layers: list[Any]) -> list[str]:
    """Names of layers beside one another that are the same when the model is made again.

    Keras numbers layers without a name through the whole life of a process: `dense_7` would be
    `dense` in the next. Here they are numbered among their neighbours, in the same order.
    """
    numbers: dict[str, list[int]] = {}
    found = []
    for layer in layers:
        kind = to_snake_case(type(layer).__name__)
        match = re.fullmatch(rf"{re.escape(kind)}(?:_(\d+))?", layer.name)
        found.append((layer.name, kind, int(match[1] or 0)) if match else (layer.name, "", 0))
        if match:
            numbers.setdefault(kind, []).append(int(match[1] or 0))
    names = []
    for name, kind, number in found:
        if kind:
            rank = sorted(numbers[kind]).index(number)
            name = kind if rank == 0 else f"{kind}_{rank}"
        names.append(name)
    return names


def global_seed_state() -> keras.Variable | None:
    """The state of the global seed, which `keras.random` uses without a seed; `None` if unused."""
    generator = global_state.get_global_attribute("global_seed_generator")
    return None if generator is None else generator.state
