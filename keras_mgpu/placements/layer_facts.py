"""What is known about each layer without a graph: what it holds, returns and reads."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from keras_mgpu.internals.keras_graph import graph_of, nodes_in_order, sublayers_of
from keras_mgpu.internals.keras_optimizers import optimizers_of, slots_of
from keras_mgpu.internals.keras_variables import copies_of, own_weights
from keras_mgpu.model import layer_calls
from keras_mgpu.model.split_model import is_split, unsplit
from keras_mgpu.placements.layer_scopes import LayerNode, LayerScopes
from keras_mgpu.system.devices import short


@dataclass(frozen=True)
class LayerFacts:
    """One layer.

    Args:
        node: The layer and its path.
        weights: Its weights, without those that it shares with an earlier layer.
        slots: The optimizer slots of these weights.
        stages: The stages of a pipeline that run it.
        activation_bytes: Bytes that its calls return for one micro-batch; `None` if not known.
        inputs: Paths of the layers whose outputs it takes.
    """

    node: LayerNode
    weights: tuple[Any, ...]
    slots: tuple[Any, ...]
    stages: tuple[int, ...]
    activation_bytes: int | None
    inputs: tuple[str, ...]


def facts_of(model: Any, scopes: LayerScopes, num_samples: int) -> list[LayerFacts]:
    """The facts of every layer, in the order of the model."""
    stages, slots = _stages(model), _slots_by_variable(model)
    activations, inputs = _activations(unsplit(model)), _inputs(unsplit(model), scopes)
    seen: set[int] = set()
    found = []
    for node in scopes:
        key = id(node.layer)
        weights = tuple(each for each in own_weights(node.layer) if id(each) not in seen)
        seen.update(id(each) for each in weights)
        per_sample = activations.get(key)
        found.append(
            LayerFacts(
                node,
                weights,
                tuple(slot for weight in weights for slot in slots.get(id(weight), ())),
                stages.get(key, ()),
                None if per_sample is None else per_sample * num_samples,
                inputs.get(key, ()),
            )
        )
    return found


def all_optimizers(model: Any) -> list[Any]:
    """The compiled optimizer, other optimizers that the model holds, and those they wrap."""
    main = getattr(model, "optimizer", None)
    found = [each for each in (main, *optimizers_of(unsplit(model)).values()) if each is not None]
    inner = [getattr(each, "inner_optimizer", None) for each in found]
    return [*found, *(each for each in inner if each is not None)]


def bytes_by_device(variables: Iterable[Any]) -> dict[str, int]:
    """Bytes of variables on each device, with every copy counted."""
    found: dict[str, int] = defaultdict(int)
    for variable in variables:
        for copy in copies_of(variable):
            size = math.prod(copy.shape) * int(tf.as_dtype(copy.dtype).size)
            found[short(copy.device)] += size
    return dict(found)


def _slots_by_variable(model: Any) -> dict[int, list[Any]]:
    found: dict[int, dict[int, Any]] = defaultdict(dict)
    for optimizer in all_optimizers(model):
        for variable, slot in slots_of(optimizer) if optimizer.built else ():
            found[id(variable)][id(slot)] = slot
    return {key: list(slots.values()) for key, slots in found.items()}


def _stages(model: Any) -> dict[int, tuple[int, ...]]:
    found: dict[int, tuple[int, ...]] = {}
    for stage in model.stages if is_split(model) else ():
        for layer in stage.sublayers:
            found[id(layer)] = (*found.get(id(layer), ()), stage.index)
    return found


def _activations(layer: Any) -> dict[int, int | None]:
    """Bytes that the calls of each layer return per sample; `None` if shapes are not known."""
    graph = graph_of(layer)
    if graph is None:
        inner = [_activations(each) for each in sublayers_of(layer)]
        return {key: size for part in inner for key, size in part.items()}
    found: dict[int, int | None] = {}
    for node in nodes_in_order(graph):
        if graph_of(node.operation) is not None:
            part = _activations(node.operation)
        else:
            part = {id(node.operation): _sum([_spec_bytes(spec) for spec in node.outputs])}
        for key, size in part.items():
            found[key] = _sum([found.get(key, 0), size])
    return found


def _sum(sizes: Sequence[int | None]) -> int | None:
    return None if None in sizes else sum(size for size in sizes if size is not None)


def _spec_bytes(spec: keras.KerasTensor) -> int | None:
    sizes = tuple(spec.shape[1:])
    if None in sizes:
        return None
    return int(math.prod(sizes) * tf.as_dtype(spec.dtype).size)


def _inputs(model: Any, scopes: LayerScopes) -> dict[int, tuple[str, ...]]:
    """Paths of the layers whose outputs each layer takes.

    Operations that are not layers, such as an addition, and entries of nested models are skipped.
    """
    calls = layer_calls.from_model(model)
    paths = {id(node.layer): node.path for node in scopes}
    made_by: dict[int, tuple[str, ...]] = {}
    found: dict[int, tuple[str, ...]] = {}
    for call in calls.calls if calls is not None else ():
        read = [path for value in call.inputs for path in made_by.get(value, ())]
        is_layer = id(call.layer) in paths and not call.is_entry
        for value in call.outputs:
            made_by[value] = (paths[id(call.layer)],) if is_layer else tuple(dict.fromkeys(read))
        if is_layer:
            known = found.get(id(call.layer), ())
            found[id(call.layer)] = tuple(dict.fromkeys([*known, *read]))
    return found
