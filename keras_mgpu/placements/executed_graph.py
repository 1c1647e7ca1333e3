"""The graphs that TensorFlow ran: for every op the device it asked for and the one it got.

On request, TensorFlow keeps the graph of a function as it was traced, and the partitions that were
run, one per device. A function that remains a call in a partition is placed when it is called, and
TensorFlow keeps no record of that. For such functions the rule of TensorFlow's placer is applied:
the device asked for if it exists and has a kernel, otherwise another one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from keras_mgpu.internals.tf_functions import CALLS, MUST_COMPILE, SCOPES
from keras_mgpu.placements.kernel_support import can_run
from keras_mgpu.placements.op_types import original_type
from keras_mgpu.system.devices import kind_of, satisfies

_PASSIVE = frozenset(
    ["_Arg", "_Retval", "Const", "NoOp", "Placeholder", "_Send", "_Recv", "_HostSend", "_HostRecv"]
)
_SENDS = frozenset(["_Send", "_HostSend"])
# These send no data, only that an op is done or whether a loop continues.
_IS_SIGNAL = re.compile(r"(/ctrl|/LoopCond)/_\d+$")
# A loop or branch that was inlined into the graph around it has a number in its names.
_NUMBERED = re.compile(r"/(body|cond|then|else)/_\d+/")


@dataclass(frozen=True)
class ExecutedOp:
    """An op that was run.

    Args:
        name: Its name in the graph.
        op: What it does, such as `"MatMul"`.
        node: The op as it was traced, or as it ran if TensorFlow added it. Whether a device can
            run it is a question about this node: rewriting comes after placement.
        asked: The device it asked for, or `""`.
        got: The device it ran on.
    """

    name: str
    op: str
    node: Any
    asked: str
    got: str


@dataclass(frozen=True)
class _TracedOp:
    """An op before TensorFlow placed and rewrote it, and the device it asked for."""

    node: Any
    asked: str


@dataclass(frozen=True)
class Send:
    """A tensor that one device sends to another.

    Args:
        tensor: Its name, such as `"dense/MatMul:0"`.
        source: The device that sends it.
        target: The device that receives it.
    """

    tensor: str
    source: str
    target: str


def ops_of(graphs: Any) -> Iterator[ExecutedOp]:
    """Every op of a function that was run. Ops of called functions come once per device."""
    traced = dict(_traced(graphs.pre_optimization_graph))
    seen: set[tuple[str, str]] = set()
    for part in graphs.partition_graphs:
        bodies = {each.signature.name: each for each in part.library.function}
        for node in part.node:
            name = node.name
            if "/_" in name:
                name = _NUMBERED.sub(r"/\1/", name)
            if node.op not in _PASSIVE:
                before = traced.get(name, _TracedOp(node, ""))
                op = original_type(node, before.node)
                yield ExecutedOp(name, op, before.node, before.asked, node.device)
            if node.op in CALLS:
                yield from _ops_of_call(name, node, node.device, bodies, traced, seen)


def ops_of_traced(nodes: Iterable[Any], device: str) -> Iterator[ExecutedOp]:
    """The ops of a function that another process ran on `device`, without access to its graphs."""
    for node in nodes:
        if node.op not in _PASSIVE:
            placed = _placed(node, _merge(node.device, device), device)
            yield ExecutedOp(node.name, node.op, node, node.device, placed)


def sends_of(graphs: Any) -> Iterator[Send]:
    """Every tensor that one device sends to another."""
    for part in graphs.partition_graphs:
        for node in part.node:
            if node.op in _SENDS and not _IS_SIGNAL.search(node.input[0]):
                (tensor,) = [each for each in node.input if not each.startswith("^")]
                source, target = (_text(node, each) for each in ("send_device", "recv_device"))
                yield Send(tensor if ":" in tensor else f"{tensor}:0", source, target)


def _traced(graph: Any) -> Iterator[tuple[str, _TracedOp]]:
    """Every op of a graph and of the functions it calls, by name."""
    bodies = {each.signature.name: each for each in graph.library.function}

    def walk(prefix: str, nodes: Any, device: str) -> Iterator[tuple[str, _TracedOp]]:
        for node in nodes:
            name, asked = f"{prefix}{node.name}", _merge(node.device, device)
            yield name, _TracedOp(node, asked)
            for attribute in CALLS.get(node.op, ()):
                body = bodies.get(node.attr[attribute].func.name)
                if body is not None:
                    yield from walk(_inside(name, attribute), body.node_def, asked)

    return walk("", graph.node, "")


def _ops_of_call(
    name: str,
    call: Any,
    device: str,
    bodies: Mapping[str, Any],
    traced: Mapping[str, _TracedOp],
    seen: set[tuple[str, str]],
) -> Iterator[ExecutedOp]:
    """The ops of functions that a node on `device` calls."""
    is_compiled = call.attr[MUST_COMPILE].b
    for attribute in CALLS[call.op]:
        function = call.attr[attribute].func.name
        if function not in bodies or (function, device) in seen:
            continue
        seen.add((function, device))
        for node in bodies[function].node_def:
            inner = f"{_inside(name, attribute)}{node.name}"
            before = traced.get(inner, _TracedOp(node, ""))
            wanted = before.asked or node.device
            got = device if is_compiled else _placed(node, wanted or device, device)
            if node.op not in _PASSIVE:
                op = original_type(node, before.node)
                yield ExecutedOp(inner, op, before.node, wanted, got)
            if node.op in CALLS:
                yield from _ops_of_call(inner, node, got, bodies, traced, seen)


def _inside(call: str, attribute: str) -> str:
    """The prefix of op names in the function that an attribute of a call refers to."""
    return f"{call}/{SCOPES[attribute]}/" if SCOPES[attribute] else f"{call}/"


def _placed(node: Any, wanted: str, default: str) -> str:
    """Where TensorFlow's placer puts an op of a function that runs on the device `default`."""
    names = [str(each.name) for each in tf.config.list_logical_devices()]
    exact = [name for name in names if satisfies(name, wanted)]
    cpus = [name for name in names if kind_of(name) == "CPU"]
    for device in [*exact, default, *cpus]:
        if can_run(node, kind_of(device)):
            return device
    return default


def _merge(device: str, default: str) -> str:
    """Fills in what a device string leaves open."""
    if not device or not default:
        return device or default
    return str(
        tf.DeviceSpec.from_string(default)
        .make_merged_spec(tf.DeviceSpec.from_string(device))
        .to_string()
    )


def _text(node: Any, attribute: str) -> str:
    return str(node.attr[attribute].s.decode())
