"""Which layer an op belongs to, told by the op's name.

Keras runs a layer inside a name scope of the layer's name, and TensorFlow numbers scopes that come
again. As Keras opens each scope once to build and once to call, the ops of the layer `dense` are
always in `dense_1`, `dense_3`, …, and those of its neighbour `dense_1` in `dense_1_1`: one number
at the end is TensorFlow's, the rest is the name. A pipeline writes `tower.` for a nested model.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from keras_mgpu.keras_internals import sublayers_of
from keras_mgpu.placements.report import LOSS, MODEL, OPTIMIZER, REST

_NUMBER = re.compile(r"_\d+$")
_REPLICA = re.compile(r"replica_(\d+)")


@dataclass(eq=False)
class LayerNode:
    """A layer and where it is in the model.

    Args:
        path: Names of the layers it is inside of, and its own; `"(model)"` for the model itself.
        layer: The layer.
        below: The layers right inside it, by name.
    """

    path: str
    layer: Any
    below: dict[str, LayerNode] = field(default_factory=dict)


class LayerScopes:
    """The layers of a model, and the way from a scope to a layer.

    Args:
        model: The user's own model.
        optimizer_name: The scope in which its optimizer works.
    """

    def __init__(self, model: Any, optimizer_name: str = "") -> None:
        self._nodes: dict[int, LayerNode] = {}
        self._by_name: dict[str, LayerNode] = {}
        self._root = self._add(model, MODEL, "")
        self._optimizer_name = optimizer_name
        self._found: dict[str, tuple[str, int]] = {}

    def __iter__(self) -> Iterator[LayerNode]:
        """Every layer once, the model first."""
        return iter(self._nodes.values())

    def _add(self, layer: Any, path: str, prefix: str) -> LayerNode:
        node = self._nodes[id(layer)] = LayerNode(path, layer)
        self._by_name.setdefault(layer.name, node)
        for sublayer in sublayers_of(layer):
            known = self._nodes.get(id(sublayer))
            inner = f"{prefix}{sublayer.name}"
            node.below[sublayer.name] = known or self._add(sublayer, inner, f"{inner}/")
        return node

    def owner_of(self, op_name: str) -> tuple[str, int]:
        """The path of the layer that an op belongs to, and the replica it is run for."""
        scope = op_name.rpartition("/")[0]
        if scope not in self._found:
            self._found[scope] = self._find(scope.split("/"))
        return self._found[scope]

    def _find(self, scopes: list[str]) -> tuple[str, int]:
        node: LayerNode | None = None
        replica, rest = 0, REST
        for scope in scopes:
            name = _NUMBER.sub("", scope).removesuffix(".")
            is_replica = _REPLICA.fullmatch(scope)
            inner = self._below(node, name, scope)
            if inner is not None:
                node = inner
            elif is_replica:
                replica = int(is_replica[1])
            elif name in ("compile_loss", "loss"):
                rest = LOSS
            elif self._optimizer_name in (name, scope):
                rest = OPTIMIZER
        return (node.path if node is not None and rest == REST else rest), replica

    def _below(self, node: LayerNode | None, name: str, scope: str) -> LayerNode | None:
        """The layer whose scope comes next.

        Outside of any layer, and for layers that are called by others than those they belong to,
        every layer of the model comes into question.
        """
        if node is None and name == self._root.layer.name:
            return self._root
        below = (node or self._root).below
        for each in (name, scope):
            if each in below:
                return below[each]
        return self._by_name.get(name) or self._by_name.get(scope)
