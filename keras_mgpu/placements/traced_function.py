"""The graphs of a traced function. They hold shapes, which the graphs that ran do not.

Nothing is traced again for this.
"""

from __future__ import annotations

import math
import types
from collections.abc import Iterator, Mapping
from typing import Any

import tensorflow as tf

from keras_mgpu.internals.tf_functions import CALLS, SCOPES, functions_in, graphs_of, is_traced


class TracedFunction:
    """All traces of a function.

    Args:
        function: A `tf.function`, or a Python function around one.
        num_samples: The size to assume for dimensions that tracing left open.
    """

    def __init__(self, function: Any, num_samples: int) -> None:
        self._num_samples = num_samples
        self._graphs = [graph for each in _traced(function, set()) for graph in graphs_of(each)]

    @property
    def is_traced(self) -> bool:
        return bool(self._graphs)

    @property
    def batch_size(self) -> int | None:
        """The first dimension of the first argument that has one; `None` if it was left open."""
        for graph in self._graphs:
            for tensor in graph.inputs:
                if tensor.dtype != tf.resource and tensor.shape.rank:
                    size = tensor.shape[0]
                    return None if size is None else int(size)
        return None

    def num_bytes(self, tensor: str) -> int | None:
        """The bytes of a tensor; `None` if it was not traced."""
        for graph in self._graphs:
            found = _find(graph, tensor, functions_in(graph))
            if found is not None and found.shape.rank is not None:
                sizes = [self._num_samples if size is None else size for size in found.shape]
                return math.prod(sizes) * int(found.dtype.size)
        return None

    def nodes(self) -> Iterator[Any]:
        """The node of every op, including those of called functions."""
        for graph in self._graphs:
            for inner in [graph, *functions_in(graph).values()]:
                for op in inner.get_operations():
                    yield op.node_def


def _traced(function: Any, seen: set[int]) -> Iterator[Any]:
    """The traced functions in the closure of a Python function."""
    if is_traced(function):
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


def _find(graph: Any, tensor: str, functions: Mapping[str, Any]) -> tf.Tensor | None:
    """A tensor of a graph, or of a function that was inlined into it.

    The latter is called `call/tensor` or, in loops and branches, `while/body/_12/tensor`.
    """
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
        attributes = {SCOPES[each]: each for each in CALLS.get(op.type, ())}
        is_call = "" in attributes
        attribute = attributes.get("" if is_call else parts[length])
        if attribute is not None:
            inner = functions.get(op.get_attr(attribute).name)
            rest = "/".join(parts[length if is_call else length + 2 :])
            return None if inner is None else _find(inner, rest, functions)
    return None
