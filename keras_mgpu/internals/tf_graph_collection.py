"""The graphs that TensorFlow runs, as it can be made to keep them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from tensorflow.python.eager import context

_collections: list[list[Any]] = []  # TensorFlow has one collection for the whole process.


@contextlib.contextmanager
def collecting() -> Iterator[list[Any]]:
    """The list then holds the graphs of functions that were run for the first time inside."""
    found: list[Any] = []
    _collections.append(found)
    context.context().enable_graph_collection()
    try:
        yield found
    finally:
        graphs = context.context().export_run_metadata().function_graphs
        for each in _collections:
            each.extend(graphs)
        _collections[:] = [each for each in _collections if each is not found]
        if not _collections:
            context.context().disable_graph_collection()


def forget_placements() -> None:
    """Lets functions that were run before be placed anew, and so be seen; nothing is traced."""
    context.context().clear_kernel_cache()
