"""The graphs of a traced function. They hold shapes, which the graphs that ran do not.

Nothing is traced again for this.
"""

from __future__ import annotations

import math
import types
from collections.abc import Iterator, Mapping
from typing import Any

import tensorflow as tf

from keras_mgpu.internals.tf_function_bodies import body_graph, definition_of
from keras_mgpu.internals.tf_functions import CALLS, SCOPES, functions_in, graphs_of, is_traced


class TracedFunction:
    """All traces of a function.

    Args:
        function: A `tf.function`, or a Python function around one.
        num_samples: The size to assume for first dimensions that tracing left open.
    """

    def __init__(self, function: Any, num_samples: int) -> None:
        self.num_samples = num_samples
        self._graphs = [graph for each in _traced(function, set()) for graph in graphs_of(each)]
        self._written: dict[str, Any] = {}

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
        """The bytes of a tensor; `None` if it was not traced, or its shape is not known."""
        traced = [self._find(graph, tensor, functions_in(graph)) for graph in self._graphs]
        found = [each for each in traced if each is not None and each.shape.rank is not None]
        if not found:
            return None
        # Of traces for other numbers of samples, the one that was run, or one for any number.
        fits = min(found, key=self._distance)
        return num_bytes_of(fits, self.num_samples)

    def _distance(self, tensor: tf.Tensor) -> int:
        """How far the trace of a tensor is from the number of samples; smallest where it fits."""
        size = tensor.shape[0] if tensor.shape.rank else None
        return {self.num_samples: 0, None: 1}.get(size, 2)

    def nodes(self) -> Iterator[Any]:
        """The node of every op, including those of called functions."""
        for graph in self._graphs:
            for inner in [graph, *functions_in(graph).values()]:
                for op in inner.get_operations():
                    yield op.node_def

    def _find(self, graph: Any, tensor: str, functions: Mapping[str, Any]) -> tf.Tensor | None:
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
                name = op.get_attr(attribute).name
                inner = functions.get(name) or self._written_function(name)
                rest = "/".join(parts[length if is_call else length + 2 :])
                return None if inner is None else self._find(inner, rest, functions)
        return None

    def _written_function(self, name: str) -> Any | None:
        """The graph of a function that was written down and not traced, such as a stage's."""
        if name not in self._written:
            definition = definition_of(name)
            body = None if definition is None else body_graph(definition, self.num_samples)
            self._written[name] = None if body is None else body[0]
        return self._written[name]


def num_bytes_of(tensor: tf.Tensor, num_samples: int) -> int | None:
    """The bytes of a tensor if no dimension but the first is open; else `None`."""
    sizes = None if tensor.shape.rank is None else tensor.shape.as_list()
    if sizes and sizes[0] is None:
        sizes[0] = num_samples
    return None if sizes is None or None in sizes else math.prod(sizes) * int(tensor.dtype.size)


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
