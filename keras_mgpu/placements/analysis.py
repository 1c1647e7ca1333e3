"""From the graphs that were run and the model's variables to a `PlacementReport`."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import keras
import tensorflow as tf

from keras_mgpu import layer_calls
from keras_mgpu.keras_internals import (
    copies_of,
    graph_of,
    nodes_in_order,
    own_variables,
    slots_of,
    sublayers_of,
)
from keras_mgpu.placements import kernels, links
from keras_mgpu.placements.device_names import is_there, kind_of, satisfies, short
from keras_mgpu.placements.executed_graph import ExecutedOp, ops_of, ops_of_traced, sends_of
from keras_mgpu.placements.layer_scopes import LayerNode, LayerScopes
from keras_mgpu.placements.report import (
    EXECUTED,
    LOSS,
    OPTIMIZER,
    REST,
    TRACED,
    VARIABLES,
    Collective,
    DeviceTotal,
    Edge,
    LayerPlacement,
    Moved,
    OpPlacement,
    PlacementReport,
)
from keras_mgpu.placements.traced_function import TracedFunction
from keras_mgpu.unsplit import is_split, unsplit

_NO_LAYER = (LOSS, OPTIMIZER, REST)


def make_report(
    model: Any, graphs: Sequence[Any], traced: TracedFunction, num_samples: int
) -> PlacementReport:
    """Puts together what is known.

    Args:
        model: The model, split or not.
        graphs: What `executed_graph.stop_collecting` returned.
        traced: The function that was run.
        num_samples: Samples in a micro-batch.
    """
    optimizer = getattr(model, "optimizer", None)
    scopes = LayerScopes(unsplit(model), getattr(optimizer, "name", ""))
    placed = [(each, [_placed(op, scopes) for op in ops_of(each)]) for each in graphs]
    # Other functions were run as well, such as those that make the optimizer's variables.
    placed = [pair for pair in placed if any(op.layer not in _NO_LAYER for op in pair[1])]
    graphs, ops = [each for each, _ in placed], [op for _, found in placed for op in found]
    source = EXECUTED if ops else VARIABLES
    for index, device in enumerate(_remote_devices(model) if not ops else ()):
        source = TRACED
        found = [_placed(op, scopes) for op in ops_of_traced(traced.nodes(), device)]
        ops += [replace(op, replica=index) for op in found]
    layers = _layers(model, scopes, ops, num_samples)
    return PlacementReport(
        model=unsplit(model).name,
        strategy=_strategy_name(model),
        num_samples=num_samples,
        source=source,
        layers=tuple(layers),
        devices=tuple(_devices(model, scopes, layers, ops)),
        moved=tuple(_moved(ops)),
        edges=tuple(_edges(graphs, traced)),
        collectives=tuple(_collectives(graphs, traced)),
        ops=tuple(ops),
    )


def _strategy_name(model: Any) -> str:
    if is_split(model):
        return type(model).__name__
    strategy = model.distribute_strategy
    is_default = not tf.distribute.has_strategy() and strategy.num_replicas_in_sync == 1
    name = type(strategy).__name__
    return "" if is_default and name == "_DefaultDistributionStrategy" else name


def _remote_devices(model: Any) -> list[str]:
    """With parameter servers, the devices of the workers: each runs the step by itself."""
    if not isinstance(model.distribute_strategy, tf.distribute.ParameterServerStrategy):
        return []
    there = [each.name for each in tf.config.list_logical_devices() if "/job:worker" in each.name]
    by_task: dict[str, list[str]] = defaultdict(list)
    for name in there:
        by_task[name.partition("/device:")[0]].append(name)
    return [
        next((each for each in names if kind_of(each) == "GPU"), names[0])
        for names in by_task.values()
    ]


def _placed(op: ExecutedOp, scopes: LayerScopes) -> OpPlacement:
    layer, replica = scopes.owner_of(op.name)
    reason = "" if not op.asked or satisfies(op.got, op.asked) else _reason(op)
    return OpPlacement(op.name, op.node.op, layer, replica, short(op.asked), short(op.got), reason)


def _reason(op: ExecutedOp) -> str:
    missing_kernel = kernels.why_not(op.node, kind_of(op.asked)) if kind_of(op.asked) else ""
    if missing_kernel:
        return missing_kernel
    if not is_there(op.asked):
        return f"there is no {short(op.asked)} here"
    if "resource" in op.node.op.lower() or "Variable" in op.node.op:
        return "it stays with its variable"
    return "TensorFlow's placer chose so"


def _moved(ops: Iterable[OpPlacement]) -> list[Moved]:
    counts = Counter((op.layer, op.op, op.asked, op.got, op.reason) for op in ops if op.reason)
    return [
        Moved(layer, op, asked, got, count, reason)
        for (layer, op, asked, got, reason), count in counts.items()
    ]


@dataclass
class _Seen:
    """What was seen of a layer in the graphs: devices by replica, with how often."""

    asked: dict[int, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    got: dict[int, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    num_ops: int = 0


def _layers(
    model: Any, scopes: LayerScopes, ops: Iterable[OpPlacement], num_samples: int
) -> list[LayerPlacement]:
    seen: dict[str, _Seen] = defaultdict(_Seen)
    for op in ops:
        found = seen[op.layer]
        found.num_ops += 1
        found.got[op.replica][op.got] += 1
        if op.asked:
            found.asked[op.replica][op.asked] += 1
    stages = _stages(model)
    activations = _activations(unsplit(model))
    inputs = _inputs(unsplit(model), scopes)
    slots = _slots_by_variable(model)
    rows = []
    for node in scopes:
        variables = own_variables(node.layer)
        if node.path not in seen and not variables and _is_container(node):
            continue
        per_sample = activations.get(id(node.layer))
        rows.append(
            _row(
                node,
                seen.pop(node.path, _Seen()),
                stages.get(id(node.layer), ()),
                variables,
                [slot for variable in variables for slot in slots.get(id(variable), ())],
                None if per_sample is None else per_sample * num_samples,
                inputs.get(id(node.layer), ()),
            )
        )
    others = [
        LayerPlacement(path, "", (), *_by_replica(found), num_ops=found.num_ops)
        for path, found in seen.items()
    ]
    return [*rows, *sorted(others, key=lambda layer: layer.path)]


def _is_container(node: LayerNode) -> bool:
    return bool(node.below) or isinstance(node.layer, keras.layers.InputLayer)


def _row(
    node: LayerNode,
    seen: _Seen,
    stages: tuple[int, ...],
    variables: Sequence[Any],
    slots: Sequence[Any],
    activation_bytes: int | None,
    inputs: tuple[str, ...],
) -> LayerPlacement:
    return LayerPlacement(
        node.path,
        type(node.layer).__name__,
        stages,
        *_by_replica(seen),
        weights_on=_devices_of(variables),
        slots_on=_devices_of(slots),
        num_ops=seen.num_ops,
        num_parameters=sum(math.prod(variable.shape) for variable in variables),
        weight_bytes=_num_bytes(variables),
        slot_bytes=_num_bytes(slots),
        activation_bytes=activation_bytes,
        inputs=inputs,
    )


def _by_replica(
    seen: _Seen,
) -> tuple[tuple[tuple[str, ...], ...], tuple[tuple[str, ...], ...]]:
    """Devices asked for and got, the most used first, for each replica."""
    replicas = range(max([*seen.got, *seen.asked], default=-1) + 1)

    def devices(counts: dict[int, Counter[str]]) -> tuple[tuple[str, ...], ...]:
        ranked = [sorted(counts[r].items(), key=lambda each: (-each[1], each[0])) for r in replicas]
        return tuple(tuple(device for device, _ in each) for each in ranked)

    return devices(seen.asked), devices(seen.got)


def _devices_of(variables: Iterable[Any]) -> tuple[str, ...]:
    found = {short(copy.device) for variable in variables for copy in copies_of(variable)}
    return tuple(sorted(found))


def _num_bytes(variables: Iterable[Any]) -> int:
    return sum(_size(copy) for variable in variables for copy in copies_of(variable))


def _size(variable: Any) -> int:
    return math.prod(variable.shape) * int(tf.as_dtype(variable.dtype).size)


def _slots_by_variable(model: Any) -> dict[int, list[Any]]:
    optimizer = getattr(model, "optimizer", None)
    found: dict[int, list[Any]] = defaultdict(list)
    if optimizer is not None and optimizer.built:
        for variable, slot in slots_of(optimizer):
            found[id(variable)].append(slot)
    return found


def _stages(model: Any) -> dict[int, tuple[int, ...]]:
    """The stages of a pipeline that run each layer."""
    found: dict[int, tuple[int, ...]] = {}
    for stage in model.stages if is_split(model) else ():
        for layer in stage.sublayers:
            found[id(layer)] = (*found.get(id(layer), ()), stage.index)
    return found


def _activations(layer: Any) -> dict[int, int | None]:
    """Bytes that the calls of each layer return for one sample, where Keras knows the shapes."""
    graph = graph_of(layer)
    if graph is None:
        inner = [_activations(each) for each in sublayers_of(layer)]
        return {key: size for part in inner for key, size in part.items()}
    found: dict[int, int | None] = {}
    for node in nodes_in_order(graph):
        part = (
            _activations(node.operation)
            if graph_of(node.operation) is not None
            else {id(node.operation): _sum([_spec_bytes(spec) for spec in node.outputs])}
        )
        for key, size in part.items():
            found[key] = _sum([found.get(key, 0), size])
    return found


def _sum(sizes: Sequence[int | None]) -> int | None:
    return None if None in sizes else sum(size for size in sizes if size is not None)


def _inputs(model: Any, scopes: LayerScopes) -> dict[int, tuple[str, ...]]:
    """Paths of the layers whose outputs each layer takes.

    What is no layer, such as an addition, and the entry of a nested model are looked through.
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


def _spec_bytes(spec: keras.KerasTensor) -> int | None:
    sizes = tuple(spec.shape[1:])
    if None in sizes:
        return None
    return math.prod(sizes) * int(tf.as_dtype(spec.dtype).size)


def _devices(
    model: Any,
    scopes: LayerScopes,
    layers: Iterable[LayerPlacement],
    ops: Iterable[OpPlacement],
) -> list[DeviceTotal]:
    weights: Counter[str] = Counter()
    slot_bytes: Counter[str] = Counter()
    activations: Counter[str] = Counter()
    num_layers: Counter[str] = Counter()
    num_ops = Counter(op.got for op in ops)
    slots = _slots_by_variable(model)
    for node in scopes:
        for variable in own_variables(node.layer):
            for copy in copies_of(variable):
                weights[short(copy.device)] += _size(copy)
            for slot in slots.get(id(variable), ()):
                for copy in copies_of(slot):
                    slot_bytes[short(copy.device)] += _size(copy)
    for layer in layers:
        if layer.kind:
            num_layers.update({device for devices in layer.got for device in devices})
        for devices in layer.got:
            if devices and layer.activation_bytes:
                activations[devices[0]] += layer.activation_bytes
    names = sorted({*weights, *slot_bytes, *activations, *num_ops})
    return [
        DeviceTotal(
            name,
            num_layers[name],
            num_ops[name],
            weights[name],
            slot_bytes[name],
            activations[name],
        )
        for name in names
    ]


def _edges(graphs: Iterable[Any], traced: TracedFunction) -> list[Edge]:
    found: dict[tuple[str, str], list[int | None]] = defaultdict(list)
    for each in graphs:
        for send in sends_of(each):
            found[send.source, send.target].append(traced.num_bytes(send.tensor))
    return [
        Edge(
            short(source),
            short(target),
            len(found[source, target]),
            sum(size for size in found[source, target] if size is not None),
            found[source, target].count(None),
            links.between(source, target),
        )
        for source, target in sorted(found)
    ]


def _collectives(graphs: Iterable[Any], traced: TracedFunction) -> list[Collective]:
    found: dict[tuple[str, str], list[int | None]] = defaultdict(list)
    for each in graphs:
        for part in each.partition_graphs:
            for node in part.node:
                if node.op.startswith(("Collective", "Nccl")) and "Group" not in node.op:
                    found[short(node.device), node.op].append(traced.num_bytes(f"{node.name}:0"))
    return [
        Collective(device, op, len(each), sum(size for size in each if size is not None))
        for (device, op), each in sorted(found.items())
    ]
