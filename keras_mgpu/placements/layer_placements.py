"""Per layer and per device: what ran there, and what is held there."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import keras

from keras_mgpu.placements.layer_facts import LayerFacts, bytes_by_device
from keras_mgpu.placements.report_parts import (
    LOSS,
    OPTIMIZER,
    REST,
    DeviceTotal,
    LayerPlacement,
    OpPlacement,
)

NO_LAYER = (LOSS, OPTIMIZER, REST)
Counts = dict[int, Counter[str]]  # For each replica, how often each device occurs.
DevicesByReplica = tuple[tuple[str, ...], ...]


def _counts() -> Counts:
    return defaultdict(Counter)


@dataclass
class OpCounts:
    """The devices of a layer's ops.

    Args:
        asked: Devices that ops asked for.
        got: Devices that ops ran on.
        forward: The same, for the forward pass only.
        num_ops: Number of ops.
    """

    asked: Counts = field(default_factory=_counts)
    got: Counts = field(default_factory=_counts)
    forward: Counts = field(default_factory=_counts)
    num_ops: int = 0


def count_ops(ops: Iterable[OpPlacement]) -> dict[str, OpCounts]:
    """Counts the ops of each layer, by the layer's path."""
    found: dict[str, OpCounts] = defaultdict(OpCounts)
    for op in ops:
        layer = found[op.layer]
        layer.num_ops += 1
        layer.got[op.replica][op.got] += 1
        if op.asked:
            layer.asked[op.replica][op.asked] += 1
        if "gradient" not in op.name:
            layer.forward[op.replica][op.got] += 1
    return dict(found)


def layers_of(facts: Iterable[LayerFacts], counts: Mapping[str, OpCounts]) -> list[LayerPlacement]:
    """Every layer in the order of the model, followed by ops that belong to no layer."""
    layers = [
        _layer(each, counts.get(each.node.path, OpCounts()))
        for each in facts
        if each.node.path in counts or each.weights or not _is_container(each)
    ]
    others = [
        LayerPlacement(
            path,
            kind="",
            asked=_by_replica(counts[path], counts[path].asked),
            got=_by_replica(counts[path], counts[path].got),
            num_ops=counts[path].num_ops,
        )
        for path in sorted(counts)
        if path in NO_LAYER
    ]
    return [*layers, *others]


def devices_of(facts: Iterable[LayerFacts], counts: Mapping[str, OpCounts]) -> list[DeviceTotal]:
    """What each device holds and runs."""
    totals: dict[str, Counter[str]] = defaultdict(Counter)
    for each in facts:
        _add_memory(totals, each)
        _add_layer(totals, each, counts.get(each.node.path, OpCounts()))
    for layer in counts.values():
        for devices in layer.got.values():
            for device, count in devices.items():
                totals[device]["num_ops"] += count
    return [DeviceTotal(device, **totals[device]) for device in sorted(totals)]


def _is_container(facts: LayerFacts) -> bool:
    return bool(facts.node.below) or isinstance(facts.node.layer, keras.layers.InputLayer)


def _layer(facts: LayerFacts, counts: OpCounts) -> LayerPlacement:
    weights, slots = bytes_by_device(facts.weights), bytes_by_device(facts.slots)
    return LayerPlacement(
        facts.node.path,
        kind=type(facts.node.layer).__name__,
        stages=facts.stages,
        asked=_by_replica(counts, counts.asked),
        got=_by_replica(counts, counts.got),
        weights_on=tuple(sorted(weights)),
        slots_on=tuple(sorted(slots)),
        num_ops=counts.num_ops,
        num_parameters=sum(math.prod(weight.shape) for weight in facts.weights),
        weight_bytes=sum(weights.values()),
        slot_bytes=sum(slots.values()),
        activation_bytes=facts.activation_bytes,
        inputs=facts.inputs,
    )


def _by_replica(counts: OpCounts, devices: Counts) -> DevicesByReplica:
    """For each replica its devices, the most used one first."""
    num_replicas = max([*counts.got, *counts.asked], default=-1) + 1
    ranked = [
        sorted(devices[replica].items(), key=lambda each: (-each[1], each[0]))
        for replica in range(num_replicas)
    ]
    return tuple(tuple(device for device, _ in each) for each in ranked)


def _add_memory(totals: dict[str, Counter[str]], facts: LayerFacts) -> None:
    for device, size in bytes_by_device(facts.weights).items():
        totals[device]["weight_bytes"] += size
    for device, size in bytes_by_device(facts.slots).items():
        totals[device]["slot_bytes"] += size


def _add_layer(totals: dict[str, Counter[str]], facts: LayerFacts, counts: OpCounts) -> None:
    for device in {device for devices in counts.got.values() for device in devices}:
        totals[device]["num_layers"] += 1
    for devices in counts.forward.values():
        # A layer's output is where most of its forward pass ran.
        ((device, _),) = devices.most_common(1)
        totals[device]["activation_bytes"] += facts.activation_bytes or 0
