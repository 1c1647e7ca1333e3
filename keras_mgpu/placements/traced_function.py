"""The graphs that tracing a function has made: they know what those that run do not tell.

Nothing is traced again for it.
"""

from __future__ import annotations

import math
import types
from collections.abc import Iterator
from typing import Any

import tensorflow as tf
from tensorflow.python.eager.polymorphic_function.polymorphic_function import Function


class TracedFunction:
    """What was traced of a function.

    Args:
        function: A `tf.function`, or a Python function around one.
        num_samples: What a dimension that tracing left open is taken to be.
    """

    def __init__(self, function: Any, num_samples: int) -> None:
        self._num_samples = num_samples
        self._graphs = [
            concrete.graph
            for each in _traced(function, set())
            for concrete in each._list_all_concrete_functions()
        ]

    def num_bytes(self, tensor: str) -> int | None:
        """The bytes of a tensor; `None` if it is not among those that were traced."""
        for graph in self._graphs:
            found = _find(graph, tensor)
            if found is not None and found.shape.rank is not None:
                sizes = [self._num_samples if size is None else size for size in found.shape]
                return math.prod(sizes) * int(found.dtype.size)
        return None

    def nodes(self) -> Iterator[Any]:
        """Every op as TensorFlow describes it, those of the functions it calls too."""
        for graph in self._graphs:
            for inner in [graph, *_functions(graph).values()]:
                for op in inner.get_operations():
                    yield op.node_def


def _traced(function: Any, seen: set[int]) -> Iterator[Function]:
    """The traced functions that a Python function calls: they stand in its closure."""
    if isinstance(function, Function):
        yield function
    elif isinstance(function, types.MethodType):
        yield from _traced(function.__func__, seen)
    elif isinstance(function, types.FunctionType) and id(function) not in seen:
        seen.add(id(function))
        for cell in function.__closure__ or ():
            try:
                yield from _traced(cell.cell_contents, seen)
            except ValueError:  # The cell is empty.
                continue


def _find(graph: Any, tensor: str) -> tf.Tensor | None:
    """A tensor of a graph, or of a function that was made part of it: `call/tensor`."""
    try:
        return graph.get_tensor_by_name(tensor)
    except (KeyError, ValueError):
        pass
    parts = tensor.split("/")
    for length in range(1, len(parts)):
        try:
            op = graph.get_operation_by_name("/".join(parts[:length]))
        except (KeyError, ValueError):
            continue
        if op.type in ("PartitionedCall", "StatefulPartitionedCall"):
            inner = _functions(graph).get(op.get_attr("f").name)
            return None if inner is None else _find(inner, "/".join(parts[length:]))
    return None


def _functions(graph: Any) -> dict[str, Any]:
    """The graphs of the functions that a graph calls, by name."""
    return {name: each.graph for name, each in graph._functions.items() if each.graph is not None}
