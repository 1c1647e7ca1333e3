"""Which layer an op belongs to, found by the op's name.

Keras runs a layer in a name scope with the layer's name, and TensorFlow numbers repeated scopes.
Keras opens each scope once to build and once to call. So the ops of the layer `dense` are always in
`dense_1`, `dense_3`, …, and those of its neighbour `dense_1` in `dense_1_1`: the last number is
TensorFlow's, and the rest is the name. A pipeline writes `tower.` for a nested model.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

from keras_mgpu.internals.keras_graph import sublayers_of
from keras_mgpu.placements.report_parts import LOSS, MODEL, OPTIMIZER, REST

_NUMBER = re.compile(r"_\d+$")
_REPLICA = re.compile(r"replica_(\d+)")


@dataclass(eq=False)
class LayerNode:
    """A layer and where it is in the model.

    Args:
        path: Names of the layers around it, and its own name; `"(model)"` for the model itself.
        layer: The layer.
        below: The layers directly inside it, by name.
    """

    path: str
    layer: Any
    below: dict[str, LayerNode] = field(default_factory=dict)


class LayerScopes:
    """Finds the layers of a model by the scopes of their ops.

    Args:
        model: The user's model, not split.
        optimizer_names: The name scopes of its optimizers.
    """

    def __init__(self, model: Any, optimizer_names: Collection[str] = ()) -> None:
        self._nodes: dict[int, LayerNode] = {}
        self._by_name: dict[str, LayerNode] = {}
        self._root = self._add(model, MODEL, "")
        self._optimizer_names = frozenset(optimizer_names)
        self._found: dict[str, tuple[str, int]] = {}

    def __iter__(self) -> Iterator[LayerNode]:
        """Every layer once, the model first."""
        return iter(self._nodes.values())

    def _add(self, layer: Any, path: str, prefix: str) -> LayerNode:
        node = self._nodes[id(layer)] = LayerNode(path, layer)
        self._by_name.setdefault(layer.name, node)
        times: Counter[str] = Counter()
        for sublayer in sublayers_of(layer):
            # Layers of a subclassed model may share a name. Their ops cannot be distinguished.
            times[sublayer.name] += 1
            number = times[sublayer.name]
            inner = f"{prefix}{sublayer.name}" + (f"#{number}" if number > 1 else "")
            known = self._nodes.get(id(sublayer)) or self._add(sublayer, inner, f"{inner}/")
            node.below.setdefault(sublayer.name, known)
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
            inner = self._layer_of(scope, node)
            is_replica = _REPLICA.fullmatch(scope)
            name = _NUMBER.sub("", scope)
            if inner is not None:
                node = inner
            elif node is not None:
                continue
            elif is_replica:
                replica = int(is_replica[1])
            elif name in ("compile_loss", "loss"):
                rest = LOSS
            elif self._optimizer_names & {name, scope}:
                rest = OPTIMIZER
        return (node.path if node is not None and rest == REST else rest), replica

    def _layer_of(self, scope: str, node: LayerNode | None) -> LayerNode | None:
        """The layer with this scope inside the scope of `node`, or `None`.

        A layer's scope always ends with a number or a dot. Outside of any layer, and if a layer
        is called by one that does not contain it, every layer of the model is considered.
        """
        numbered = _NUMBER.sub("", scope)
        name = numbered.removesuffix(".")
        if name == scope:
            return None
        if node is None and name == self._root.layer.name:
            return self._root
        return (node or self._root).below.get(name) or self._by_name.get(name)
