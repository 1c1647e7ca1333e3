"""Estimates the cost of each layer call, to balance stages.

Costs are computed from shapes, without running or tracing the model: multiplications by weights,
and a few operations for each element of an output. Only the ratio between layers matters.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import keras
import tensorflow as tf

from keras_mgpu.blueprint.partition import LayerCost
from keras_mgpu.internals.identity import IdentitySet
from keras_mgpu.model.layer_calls import LayerCall, LayerCalls

UNKNOWN_DIMENSION = 64  # Used for a length or width that is not known before training.
ELEMENTWISE = 4  # Operations per element of an output.


def layer_costs(model: LayerCalls) -> list[LayerCost]:
    """Returns the `LayerCost` of each call after which the model can be cut."""
    calls = [call for call in model.calls if not call.is_entry]
    crossing = _bytes_after(model, calls)
    seen: IdentitySet[keras.Variable] = IdentitySet()
    costs = []
    for call, cut_bytes in zip(calls, crossing):
        variables = [v for v in _variables(call.layer) if v not in seen]
        seen.update(variables)
        costs.append(
            LayerCost(
                name=call.name,
                compute=_compute(call),
                parameters=sum(_size(v) for v in variables),
                weight_bytes=sum(_bytes(v) for v in variables),
                cut_bytes=cut_bytes,
            )
        )
    return costs


def _variables(layer: Any) -> list[keras.Variable]:
    return list(getattr(layer, "weights", ()))


def _compute(call: LayerCall) -> int:
    """Returns the operations of a forward pass, per sample."""
    layer = call.layer
    produced = sum(_elements(spec) for spec in call.output_specs)
    cost = ELEMENTWISE * max(produced, 1)
    if isinstance(layer, keras.layers.Embedding):
        return cost
    if isinstance(layer, (keras.layers.MultiHeadAttention, keras.layers.GroupQueryAttention)):
        cost += _attention(layer, call)
    positions = _positions(call)
    weights = sum(_size(v) for v in _variables(layer) if len(v.shape) >= 2)
    return cost + 2 * weights * positions


def _positions(call: LayerCall) -> int:
    """Returns how many times a sample is multiplied by the weights of the layer.

    This is the number of positions in the output. Exceptions are recurrent layers, which step
    through their input, and transposed convolutions, which slide over it.
    """
    inputs = max((_places(spec, call.layer) for spec in call.input_specs), default=1)
    outputs = max((_places(spec, call.layer) for spec in call.output_specs), default=1)
    if isinstance(call.layer, keras.layers.RNN):
        return inputs
    if "Transpose" in type(call.layer).__name__:
        return min(inputs, outputs)
    return outputs


def _places(spec: keras.KerasTensor, layer: Any) -> int:
    """Returns the product of all dimensions except samples and channels."""
    shape = _known(spec.shape[1:])
    channels_first = getattr(layer, "data_format", None) == "channels_first"
    return math.prod(shape[1:] if channels_first else shape[:-1])


def _attention(layer: Any, call: LayerCall) -> int:
    """Returns the operations for attention scores and weighted sums."""
    lengths = [_places(spec, layer) for spec in call.input_specs]
    queries, keys = lengths[0], lengths[min(1, len(lengths) - 1)]
    heads = int(getattr(layer, "num_heads", 0) or getattr(layer, "num_query_heads", 1))
    width = int(getattr(layer, "key_dim", 0) or getattr(layer, "head_dim", 1))
    return 4 * queries * keys * heads * width


def _bytes_after(model: LayerCalls, calls: Sequence[LayerCall]) -> list[int]:
    """Returns, for each call, the bytes per sample produced up to it and needed after it."""
    sizes: dict[int, int] = {}
    last_use: dict[int, int] = {}
    made_at: dict[int, int] = {}
    position = 0
    for call in model.calls:
        for value in call.inputs:
            last_use[value] = position
        for value, spec in zip(call.outputs, call.output_specs):
            sizes[value] = _elements(spec) * _itemsize(spec.dtype)
            made_at[value] = position
        position += 0 if call.is_entry else 1
    for value in model.outputs:
        last_use[value] = len(calls)
    crossing = [0] * (len(calls) + 1)
    for value, made in made_at.items():
        crossing[made] += sizes[value]
        crossing[max(last_use.get(value, made), made)] -= sizes[value]
    return _running_sum(crossing)[: len(calls)]


def _running_sum(numbers: Iterable[int]) -> list[int]:
    total, sums = 0, []
    for number in numbers:
        total += number
        sums.append(total)
    return sums


def _elements(spec: keras.KerasTensor) -> int:
    return math.prod(_known(spec.shape[1:]))


def _known(shape: Sequence[int | None]) -> list[int]:
    return [UNKNOWN_DIMENSION if size is None else size for size in shape]


def _size(variable: keras.Variable) -> int:
    return int(math.prod(variable.shape))


def _bytes(variable: keras.Variable) -> int:
    return _size(variable) * _itemsize(variable.dtype)


def _itemsize(dtype: str) -> int:
    return int(tf.as_dtype(dtype).size)
