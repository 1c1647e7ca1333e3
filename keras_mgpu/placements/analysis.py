"""From the graphs that were run and what layers hold to a `PlacementReport`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from keras_mgpu.internals.keras_training import is_default_strategy
from keras_mgpu.model.split_model import is_split, unsplit
from keras_mgpu.placements.executed_graph import read_graph
from keras_mgpu.placements.layer_facts import all_optimizers, facts_of
from keras_mgpu.placements.layer_placements import NO_LAYER, count_ops, devices_of, layers_of
from keras_mgpu.placements.layer_scopes import LayerScopes
from keras_mgpu.placements.op_placements import moved_ops_of, place_ops, place_remote_ops
from keras_mgpu.placements.report import EXECUTED, TRACED, VARIABLES, PlacementReport
from keras_mgpu.placements.traced_function import TracedFunction
from keras_mgpu.placements.transfers import collectives_of, edges_of


def make_report(
    model: Any, graphs: Sequence[Any], traced: TracedFunction, num_samples: int
) -> PlacementReport:
    """Puts together what is known.

    Args:
        model: The model, split or not.
        graphs: What `observation.collected_graphs` has found.
        traced: The function that was run.
        num_samples: Samples in a micro-batch.
    """
    scopes = LayerScopes(unsplit(model), [each.name for each in all_optimizers(model)])
    executed = [read_graph(each) for each in graphs]
    placed = [(each, place_ops(each.ops, scopes)) for each in executed]
    # Other functions were run too, such as those that make the optimizer's variables.
    placed = [pair for pair in placed if any(op.layer not in NO_LAYER for op in pair[1])]
    executed, ops = [each for each, _ in placed], [op for _, found in placed for op in found]
    source = EXECUTED
    if not ops:
        ops = place_remote_ops(model, traced, scopes)
        source = TRACED if ops else VARIABLES
    facts, counts = facts_of(model, scopes, num_samples), count_ops(ops)
    return PlacementReport(
        model=unsplit(model).name,
        strategy=_strategy_name(model),
        num_samples=num_samples,
        source=source,
        layers=tuple(layers_of(facts, counts)),
        devices=tuple(devices_of(facts, counts)),
        moved=tuple(moved_ops_of(ops)),
        edges=tuple(edges_of(executed, traced)),
        collectives=tuple(collectives_of(executed, traced)),
        ops=tuple(ops),
    )


def _strategy_name(model: Any) -> str:
    if is_split(model):
        return type(model).__name__
    strategy = model.distribute_strategy
    return "" if is_default_strategy(strategy) else type(strategy).__name__
