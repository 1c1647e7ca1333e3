"""Estimates what each layer call costs, as plain numbers for the balance of stages.

The estimate needs no run and no trace: multiplications by weights are counted from shapes, all
else as a few operations for each number that comes out. Only the ratio between layers matters.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import keras
import tensorflow as tf

from keras_mgpu.blueprint.partition import LayerCost
from keras_mgpu.model.layer_calls import LayerCall, LayerCalls

UNKNOWN_DIMENSION = 64  # Stands in for a length or a width that only the data knows.
ELEMENTWISE = 4  # Operations for each number of a layer's output.


def layer_costs(model: LayerCalls) -> list[LayerCost]:
    """One `LayerCost` for each call a cut can stand behind."""
    calls = [call for call in model.calls if not call.is_entry]
    crossing = _bytes_behind(model, calls)
    seen: set[int] = set()
    costs = []
    for call, cut_bytes in zip(calls, crossing):
        variables = [v for v in _variables(call.layer) if id(v) not in seen]
        seen.update(id(v) for v in variables)
        costs.append(
            LayerCost(
                name=call.name,
                compute=_compute(call),
                parameters=sum(math.prod(v.shape) for v in variables),
                weight_bytes=sum(_bytes(v) for v in variables),
                cut_bytes=cut_bytes,
            )
        )
    return costs


def _variables(layer: Any) -> list[keras.Variable]:
    return list(getattr(layer, "weights", ()))


def _compute(call: LayerCall) -> int:
    """Operations a sample, forward."""
    layer = call.layer
    produced = sum(_elements(spec) for spec in call.output_specs)
    cost = ELEMENTWISE * max(produced, 1)
    if isinstance(layer, keras.layers.Embedding):
        return cost
    if isinstance(layer, (keras.layers.MultiHeadAttention, keras.layers.GroupQueryAttention)):
        cost += _attention(layer, call)
    positions = _positions(call)
    weights = sum(math.prod(v.shape) for v in _variables(layer) if len(v.shape) >= 2)
    return cost + 2 * weights * positions


def _positions(call: LayerCall) -> int:
    """How many times a sample is multiplied by the layer's weights.

    A convolution slides over its output, a transposed one over its input; a recurrent layer
    steps through its input. For all others the places of the output say it.
    """
    inputs = max((_places(spec, call.layer) for spec in call.input_specs), default=1)
    outputs = max((_places(spec, call.layer) for spec in call.output_specs), default=1)
    if isinstance(call.layer, keras.layers.RNN):
        return inputs
    if "Transpose" in type(call.layer).__name__:
        return min(inputs, outputs)
    return outputs


def _places(spec: keras.KerasTensor, layer: Any) -> int:
    """The product of all dimensions but those of samples and channels."""
    shape = _known(spec.shape[1:])
    channels_first = getattr(layer, "data_format", None) == "channels_first"
    return math.prod(shape[1:] if channels_first else shape[:-1])


def _attention(layer: Any, call: LayerCall) -> int:
    """Scores and weighted sums: two products of every query with every key."""
    lengths = [_places(spec, layer) for spec in call.input_specs]
    queries, keys = lengths[0], lengths[min(1, len(lengths) - 1)]
    heads = int(getattr(layer, "num_heads", 0) or getattr(layer, "num_query_heads", 1))
    width = int(getattr(layer, "key_dim", 0) or getattr(layer, "head_dim", 1))
    return 4 * queries * keys * heads * width


def _bytes_behind(model: LayerCalls, calls: Sequence[LayerCall]) -> list[int]:
    """For each call, the bytes a sample that are made up to it and needed behind it."""
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


def _bytes(variable: keras.Variable) -> int:
    return math.prod(variable.shape) * _itemsize(variable.dtype)


def _itemsize(dtype: str) -> int:
    return int(tf.as_dtype(dtype).size)
