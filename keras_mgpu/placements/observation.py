"""Watches one run of a model's function and makes a report of it."""

from __future__ import annotations

import contextlib
import gc
import re
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from keras_mgpu.internals import tf_graph_collection
from keras_mgpu.model.split_model import is_split, unsplit
from keras_mgpu.placements.analysis import make_report
from keras_mgpu.placements.layer_scopes import LayerScopes
from keras_mgpu.placements.op_placements import obstacle
from keras_mgpu.placements.report import PlacementReport
from keras_mgpu.placements.traced_function import TracedFunction
from keras_mgpu.system.devices import available, kind_of, short

_NO_DEVICE = re.compile(
    r"Unable to find any devices|Cannot assign a device|Could not satisfy|no supported kernel"
)


class PlacementError(ValueError):
    """Soft placement is off, and some ops cannot run on the device they ask for."""


def report_of(
    model: Any, graphs: Sequence[Any], function: Any, num_samples: int | None
) -> PlacementReport:
    """Reports where the ops of a function ran.

    Args:
        model: The model, split or not.
        graphs: What `collected_graphs` has found.
        function: What ran: a `tf.function`, a Python function around one, or `None`.
        num_samples: Samples of the batch in one replica, or `None` if not known.
    """
    with _without_garbage_collection():
        size = num_samples or TracedFunction(function, 1).batch_size or 1
        size = -(-size // (model.micro_batches if is_split(model) else 1))
        return make_report(model, graphs, TracedFunction(function, size), size)


@contextlib.contextmanager
def collected_graphs(function: Any) -> Iterator[list[Any]]:
    """Yields a list that holds the graphs of what was run inside, once the block ends.

    A function that was run before is placed again, but not traced again.
    """
    if function is None or TracedFunction(function, 1).is_traced:
        tf_graph_collection.forget_placements()
    with contextlib.ExitStack() as stack:
        found = stack.enter_context(tf_graph_collection.collecting())
        try:
            yield found
        finally:
            with _without_garbage_collection():
                stack.close()


@contextlib.contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """Just after tracing, so many objects exist that looking for garbage takes the most time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextlib.contextmanager
def explained_errors(model: Any, function: Any) -> Iterator[None]:
    """Turns TensorFlow's refusal to place an op into an error that names layers.

    Without soft placement, TensorFlow names a device, and rarely the op that asked for it.
    """
    try:
        yield
    except tf.errors.InvalidArgumentError as error:
        found = _unplaceable(model, TracedFunction(function, 1))
        if not _NO_DEVICE.search(error.message) or not found:
            raise
        raise PlacementError(
            "Soft placement is off, and some ops cannot run on the device they ask for:\n"
            + "".join(f"  {line}\n" for line in found)
            + f"Available devices: {', '.join(available())}. To let TensorFlow choose another "
            "device, call `tf.config.set_soft_device_placement(True)`."
        ) from error


def _unplaceable(model: Any, traced: TracedFunction) -> list[str]:
    """One line for each layer and device that it cannot have."""
    scopes = LayerScopes(unsplit(model))
    ops: dict[tuple[str, str, str], set[str]] = {}
    for node in traced.nodes():
        if not kind_of(node.device) or node.op in ("Const", "NoOp", "Placeholder"):
            continue
        reason = obstacle(node, node.device)
        if reason:
            layer, _ = scopes.owner_of(node.name)
            ops.setdefault((layer, short(node.device), reason), set()).add(node.name)
    return [
        f"{len(names)} {'op' if len(names) == 1 else 'ops'} of {layer} asked for {device}: {reason}"
        for (layer, device, reason), names in ops.items()
    ]
