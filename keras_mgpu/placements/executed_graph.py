"""The graphs that TensorFlow ran: for every op the device it asked for and the one it got.

On request, TensorFlow keeps the graph of a function as it was traced, and the partitions that were
run, one per device. A function that remains a call in a partition is placed when it is called, and
TensorFlow keeps no record of that. For such functions the rule of TensorFlow's placer is applied.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from keras_mgpu.internals.tf_functions import CALLS, MUST_COMPILE, SCOPES
from keras_mgpu.placements.op_types import original_type
from keras_mgpu.placements.placer import Placer
from keras_mgpu.system.devices import memory_of

_PASSIVE = frozenset(
    ["_Arg", "_Retval", "Const", "NoOp", "Placeholder", "_Send", "_Recv", "_HostSend", "_HostRecv"]
)
_SENDS = frozenset(["_Send", "_HostSend"])  # The latter, on a GPU, from the host's memory.
# These send no data, only that an op is done or whether a loop continues.
_IS_SIGNAL = re.compile(r"(/ctrl|/LoopCond)/_\d+$")
_PASS_ON = frozenset(["Identity", "Switch"])
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
class Send:
    """A tensor that is copied from the memory of one device to that of another.

    Args:
        tensor: Its name, such as `"dense/MatMul:0"`.
        source: The device whose memory it is in.
        target: The device whose memory it is copied to.
    """

    tensor: str
    source: str
    target: str


@dataclass(frozen=True, eq=False)
class CalledFunction:
    """A function that remained a call.

    Args:
        definition: Its definition.
        device: The device that calls it.
        is_compiled: Whether XLA compiles it as a whole.
        devices: The device of each of its ops, by name.
        calls: The functions that it calls itself, one for each call.
    """

    definition: Any
    device: str
    is_compiled: bool
    devices: dict[str, str] = field(default_factory=dict)
    calls: list[CalledFunction] = field(default_factory=list)


@dataclass(frozen=True, eq=False)
class ExecutedGraph:
    """What TensorFlow has run for a function.

    Args:
        kept: What TensorFlow has kept of it.
        ops: Every op, those of called functions once per device.
        sends: The tensors that devices send to one another, those inside called functions left out.
        calls: The functions that remained calls, one for each call.
    """

    kept: Any
    ops: list[ExecutedOp]
    sends: list[Send]
    calls: list[CalledFunction]


@dataclass(frozen=True)
class _TracedOp:
    """An op before TensorFlow placed and rewrote it, and the device it asked for."""

    node: Any
    asked: str


def read_graph(graphs: Any) -> ExecutedGraph:
    """Reads what TensorFlow has kept of a function that was run."""
    traced = dict(_traced(graphs.pre_optimization_graph))
    reader = _Reader(traced)
    for part in graphs.partition_graphs:
        reader.read(part)
    return ExecutedGraph(graphs, reader.ops, list(_sends(graphs, traced)), reader.calls)


def ops_of_traced(nodes: Iterable[Any], device: str) -> Iterator[ExecutedOp]:
    """The ops of a function that another process ran on `device`, without access to its graphs."""
    placer = Placer()
    for node in nodes:
        if node.op not in _PASSIVE:
            placed = placer.place(node, _merge(node.device, device), device)
            yield ExecutedOp(node.name, node.op, node, node.device, placed)


class _Reader:
    """Finds the ops of a function's partitions, and of the functions that these call."""

    def __init__(self, traced: Mapping[str, _TracedOp]) -> None:
        self.ops: list[ExecutedOp] = []
        self.calls: list[CalledFunction] = []
        self._traced = traced
        self._placer = Placer()
        self._called: dict[tuple[str, str, bool], CalledFunction] = {}

    def read(self, part: Any) -> None:
        bodies = {each.signature.name: each for each in part.library.function}
        for node in part.node:
            name = _traced_name(node.name)
            before = self._traced.get(name, _TracedOp(node, ""))
            self._add(name, node, before, before.asked, node.device)
            self.calls += self._called_by(name, node, node.device, bodies)

    def _add(self, name: str, node: Any, before: _TracedOp, asked: str, got: str) -> None:
        if node.op not in _PASSIVE:
            op = original_type(node, before.node)
            self.ops.append(ExecutedOp(name, op, before.node, asked, got))

    def _called_by(
        self, name: str, call: Any, device: str, bodies: Mapping[str, Any]
    ) -> Iterator[CalledFunction]:
        """The functions that a node on `device` calls. Each is read once for each device."""
        for attribute in CALLS.get(call.op, ()):
            function = call.attr[attribute].func.name
            if function not in bodies:
                continue
            key = (function, device, call.attr[MUST_COMPILE].b)
            if key not in self._called:
                called = self._called[key] = CalledFunction(bodies[function], *key[1:])
                self._read_body(called, _inside(name, attribute), bodies)
            yield self._called[key]

    def _read_body(self, called: CalledFunction, prefix: str, bodies: Mapping[str, Any]) -> None:
        for node in called.definition.node_def:
            name, device = f"{prefix}{node.name}", called.device
            before = self._traced.get(name, _TracedOp(node, ""))
            wanted = before.asked or node.device
            if not called.is_compiled:
                device = self._placer.place(node, wanted or device, device)
            called.devices[node.name] = device
            self._add(name, node, before, wanted, device)
            called.calls.extend(self._called_by(name, node, device, bodies))


def _sends(graphs: Any, traced: Mapping[str, _TracedOp]) -> Iterator[Send]:
    """Every tensor that is copied between the memories of two devices."""
    nodes = {node.name: node for part in graphs.partition_graphs for node in part.node}
    to_host = {_key(node) for node in nodes.values() if node.op == "_HostRecv"}
    for node in nodes.values():
        if node.op in _SENDS and not _IS_SIGNAL.search(node.input[0]):
            source = memory_of(_text(node, "send_device"), on_host=node.op == "_HostSend")
            target = memory_of(_text(node, "recv_device"), on_host=_key(node) in to_host)
            if source != target:  # Else it is in the host's memory, and stays there.
                yield Send(_tensor_sent(node, nodes, traced), source, target)


def _tensor_sent(node: Any, nodes: Mapping[str, Any], traced: Mapping[str, _TracedOp]) -> str:
    """The tensor that a node reads, passing over ops that TensorFlow put there to pass it on.

    It does so for arguments of functions that it inlines.
    """
    (tensor, *_) = [each for each in node.input if not each.startswith("^")]
    maker = tensor.partition(":")[0]
    is_added = maker in nodes and _traced_name(maker) not in traced
    if is_added and nodes[maker].op in _PASS_ON:
        return _tensor_sent(nodes[maker], nodes, traced)
    return tensor if ":" in tensor else f"{tensor}:0"


def _traced_name(name: str) -> str:
    """The name that an op had before loops and branches were inlined."""
    return _NUMBERED.sub(r"/\1/", name) if "/_" in name else name


def _key(node: Any) -> tuple[str, ...]:
    """What a node that sends and the one that receives have in common."""
    return tuple(_text(node, each) for each in ("tensor_name", "send_device", "recv_device"))


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


def _inside(call: str, attribute: str) -> str:
    """The prefix of op names in the function that an attribute of a call refers to."""
    return f"{call}/{SCOPES[attribute]}/" if SCOPES[attribute] else f"{call}/"


@functools.cache
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
