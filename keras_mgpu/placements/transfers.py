"""What devices send to one another in a step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

from keras_mgpu.placements.copies import copies_of
from keras_mgpu.placements.executed_graph import ExecutedGraph
from keras_mgpu.placements.gpu_links import link_between
from keras_mgpu.placements.report_parts import Collective, Edge
from keras_mgpu.placements.traced_function import TracedFunction
from keras_mgpu.system.devices import short


def edges_of(graphs: Iterable[ExecutedGraph], traced: TracedFunction) -> list[Edge]:
    """One edge per pair of devices; the traced function knows the sizes of tensors."""
    found: dict[tuple[str, str], list[int | None]] = defaultdict(list)
    for graph in graphs:
        for copy in copies_of(graph, traced):
            found[copy.source, copy.target].append(copy.num_bytes)
    return [_edge(*pair, found[pair]) for pair in sorted(found)]


def collectives_of(graphs: Iterable[ExecutedGraph], traced: TracedFunction) -> list[Collective]:
    """One row per device and type of collective operation."""
    found: dict[tuple[str, str], list[int | None]] = defaultdict(list)
    for node in _collective_nodes(graphs):
        found[short(node.device), node.op].append(traced.num_bytes(f"{node.name}:0"))
    return [
        Collective(device, op, len(sizes), _known(sizes))
        for (device, op), sizes in sorted(found.items())
    ]


def _edge(source: str, target: str, sizes: list[int | None]) -> Edge:
    return Edge(
        source=source,
        target=target,
        num_tensors=len(sizes),
        num_bytes=_known(sizes),
        num_unknown=sizes.count(None),
        link=link_between(source, target),
    )


def _collective_nodes(graphs: Iterable[ExecutedGraph]) -> Iterator[Any]:
    for graph in graphs:
        for part in graph.kept.partition_graphs:
            for node in part.node:
                if node.op.startswith(("Collective", "Nccl")) and "Group" not in node.op:
                    yield node


def _known(sizes: Iterable[int | None]) -> int:
    return sum(size for size in sizes if size is not None)
