"""What is copied from the memory of one device to that of another while a graph runs.

The graphs that TensorFlow keeps show it, except inside functions that remain calls, such as the
stages of a pipeline. For these, TensorFlow's rules are applied: where each op runs, and which of
its inputs and outputs are in the host's memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import tensorflow as tf

from keras_mgpu.internals.tf_function_bodies import body_graph
from keras_mgpu.placements.executed_graph import CalledFunction, ExecutedGraph
from keras_mgpu.placements.host_memory import IN_CALLS, inputs_on_host, outputs_on_host
from keras_mgpu.placements.traced_function import TracedFunction, num_bytes_of
from keras_mgpu.system.devices import kind_of, memory_of, short


@dataclass(frozen=True)
class Copy:
    """A tensor that is copied.

    Args:
        source: The device whose memory it is in. The host's memory is that of `CPU:0`.
        target: The device whose memory it is copied to.
        num_bytes: Its size; `None` if it is not known.
    """

    source: str
    target: str
    num_bytes: int | None


def copies_of(graph: ExecutedGraph, traced: TracedFunction) -> Iterator[Copy]:
    """Every copy in a run of a graph, once for each call of the function that it is in.

    Args:
        graph: What was run.
        traced: The function that was run, which knows the sizes of tensors.
    """
    for send in graph.sends:
        yield Copy(short(send.source), short(send.target), traced.num_bytes(send.tensor))
    known: dict[CalledFunction, list[Copy]] = {}
    for called in graph.calls:
        yield from _in_call(called, traced.num_samples, known)


def _in_call(
    called: CalledFunction, num_samples: int, known: dict[CalledFunction, list[Copy]]
) -> list[Copy]:
    """The copies in a function and in those that it calls."""
    if called not in known:
        body = body_graph(called.definition, num_samples) if _may_copy(called) else None
        own = [] if body is None else _Body(called, *body).copies(num_samples)
        inner = [copy for each in called.calls for copy in _in_call(each, num_samples, known)]
        known[called] = [*own, *inner]
    return known[called]


def _may_copy(called: CalledFunction) -> bool:
    """Whether more than one memory is involved. What XLA compiles works in that of its device."""
    devices = {called.device, *called.devices.values()}
    return not called.is_compiled and (len(devices) > 1 or kind_of(called.device) != "CPU")


class _Body:
    """The body of a called function.

    Args:
        called: The function.
        graph: Its body.
        results: The tensors of the graph that it returns.
    """

    def __init__(self, called: CalledFunction, graph: tf.Graph, results: list[tf.Tensor]) -> None:
        self._called = called
        self._graph = graph
        self._results = results
        self._nodes = {node.name: node for node in called.definition.node_def}

    def copies(self, num_samples: int) -> Iterator[Copy]:
        """As in TensorFlow: each tensor once per device that needs it, and memory of that."""
        seen = set()
        for tensor, device, on_host in self._uses():
            source, target = short(self._memory_of(tensor)), short(memory_of(device, on_host))
            if source != target and (tensor.ref(), device, on_host) not in seen:
                seen.add((tensor.ref(), device, on_host))
                yield Copy(source, target, num_bytes_of(tensor, num_samples))

    def _uses(self) -> Iterator[tuple[tf.Tensor, str, bool]]:
        """Each tensor that an op reads or that is returned, its device, and whether on the host."""
        for op in self._graph.get_operations():
            if op.name in self._nodes:
                device = self._called.devices[op.name]
                on_host = inputs_on_host(op, self._nodes[op.name], kind_of(device))
                yield from zip(op.inputs, [device] * len(on_host), on_host)
        for tensor in self._results:
            yield tensor, self._called.device, tensor.dtype in IN_CALLS

    def _memory_of(self, tensor: tf.Tensor) -> str:
        """The device in whose memory the op that makes a tensor leaves it."""
        op = tensor.op
        if op.name not in self._nodes:  # An argument.
            return memory_of(self._called.device, tensor.dtype in IN_CALLS)
        device = self._called.devices[op.name]
        on_host = outputs_on_host(op, self._nodes[op.name], kind_of(device))
        return memory_of(device, on_host[tensor.value_index])
