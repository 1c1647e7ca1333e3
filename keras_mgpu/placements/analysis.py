"""From the graphs that were run and what layers hold to a `PlacementReport`."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import keras
import tensorflow as tf

from keras_mgpu.internals.keras_training import is_default_strategy
from keras_mgpu.model.split_model import is_split, unsplit
from keras_mgpu.placements.executed_graph import ExecutedOp, ops_of, ops_of_traced, sends_of
from keras_mgpu.placements.gpu_links import link_between
from keras_mgpu.placements.kernel_support import missing_kernel
from keras_mgpu.placements.layer_facts import (
    LayerFacts,
    all_optimizers,
    bytes_by_device,
    facts_of,
)
from keras_mgpu.placements.layer_scopes import LayerScopes
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
from keras_mgpu.system.devices import is_there, kind_of, satisfies, short

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
    scopes = LayerScopes(unsplit(model), [each.name for each in all_optimizers(model)])
    placed = [(each, [_placed(op, scopes) for op in ops_of(each)]) for each in graphs]
    # Other functions were run as well, such as those that make the optimizer's variables.
    placed = [pair for pair in placed if any(op.layer not in _NO_LAYER for op in pair[1])]
    graphs, ops = [each for each, _ in placed], [op for _, found in placed for op in found]
    source = EXECUTED if ops else VARIABLES
    for index, device in enumerate(_remote_devices(model) if not ops else ()):
        source = TRACED
        found = [_placed(op, scopes) for op in ops_of_traced(traced.nodes(), device)]
        ops += [replace(op, replica=index) for op in found]
    facts, seen = facts_of(model, scopes, num_samples), _seen(ops)
    return PlacementReport(
        model=unsplit(model).name,
        strategy=_strategy_name(model),
        num_samples=num_samples,
        source=source,
        layers=tuple(_layers(facts, seen)),
        devices=tuple(_devices(facts, seen)),
        moved=tuple(_moved(ops)),
        edges=tuple(_edges(graphs, traced)),
        collectives=tuple(_collectives(graphs, traced)),
        ops=tuple(ops),
    )


def _strategy_name(model: Any) -> str:
    if is_split(model):
        return type(model).__name__
    strategy = model.distribute_strategy
    return "" if is_default_strategy(strategy) else type(strategy).__name__


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
    return OpPlacement(op.name, op.op, layer, replica, short(op.asked), short(op.got), reason)


def _reason(op: ExecutedOp) -> str:
    missing_kernel = missing_kernel(op.node, kind_of(op.asked)) if kind_of(op.asked) else ""
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
    forward: dict[int, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    num_ops: int = 0


def _seen(ops: Iterable[OpPlacement]) -> dict[str, _Seen]:
    found: dict[str, _Seen] = defaultdict(_Seen)
    for op in ops:
        layer = found[op.layer]
        layer.num_ops += 1
        layer.got[op.replica][op.got] += 1
        if op.asked:
            layer.asked[op.replica][op.asked] += 1
        if "gradient" not in op.name:
            layer.forward[op.replica][op.got] += 1
    return dict(found)


def _layers(facts: Iterable[LayerFacts], seen: Mapping[str, _Seen]) -> list[LayerPlacement]:
    rows = []
    for each in facts:
        path = each.node.path
        if path in seen or each.weights or not _is_container(each):
            rows.append(_row(each, seen.get(path, _Seen())))
    no_layer = [
        LayerPlacement(path, "", (), *_by_replica(seen[path]), num_ops=seen[path].num_ops)
        for path in sorted(seen)
        if path in _NO_LAYER
    ]
    return [*rows, *no_layer]


def _is_container(facts: LayerFacts) -> bool:
    return bool(facts.node.below) or isinstance(facts.node.layer, keras.layers.InputLayer)


def _row(facts: LayerFacts, seen: _Seen) -> LayerPlacement:
    weights, slots = bytes_by_device(facts.weights), bytes_by_device(facts.slots)
    return LayerPlacement(
        facts.node.path,
        type(facts.node.layer).__name__,
        facts.stages,
        *_by_replica(seen),
        weights_on=tuple(sorted(weights)),
        slots_on=tuple(sorted(slots)),
        num_ops=seen.num_ops,
        num_parameters=sum(math.prod(weight.shape) for weight in facts.weights),
        weight_bytes=sum(weights.values()),
        slot_bytes=sum(slots.values()),
        activation_bytes=facts.activation_bytes,
        inputs=facts.inputs,
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


def _devices(facts: Iterable[LayerFacts], seen: Mapping[str, _Seen]) -> list[DeviceTotal]:
    totals: dict[str, Counter[str]] = defaultdict(Counter)
    for each in facts:
        for device, size in bytes_by_device(each.weights).items():
            totals[device]["weight_bytes"] += size
        for device, size in bytes_by_device(each.slots).items():
            totals[device]["slot_bytes"] += size
        layer = seen.get(each.node.path, _Seen())
        for device in {device for counts in layer.got.values() for device in counts}:
            totals[device]["num_layers"] += 1
        for counts in layer.forward.values():
            # What a layer returns is where most of its forward pass ran.
            ((device, _),) = counts.most_common(1)
            totals[device]["activation_bytes"] += each.activation_bytes or 0
    for layer in seen.values():
        for counts in layer.got.values():
            for device, count in counts.items():
                totals[device]["num_ops"] += count
    return [DeviceTotal(device, **totals[device]) for device in sorted(totals)]


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
            link_between(source, target),
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
