"""From ops that ran to what the report shows of them: their layer, their device, and why."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import tensorflow as tf

from keras_mgpu.placements.executed_graph import ExecutedOp, ops_of_traced
from keras_mgpu.placements.layer_scopes import LayerScopes
from keras_mgpu.placements.report_parts import MovedOps, OpPlacement
from keras_mgpu.placements.traced_function import TracedFunction
from keras_mgpu.system.devices import is_there, kind_of, satisfies, short
from keras_mgpu.system.kernel_support import missing_kernel


def place_ops(ops: Iterable[ExecutedOp], scopes: LayerScopes) -> list[OpPlacement]:
    """Finds each op's layer and, if it was moved, the reason."""
    return [_place(op, scopes) for op in ops]


def place_remote_ops(model: Any, traced: TracedFunction, scopes: LayerScopes) -> list[OpPlacement]:
    """With parameter servers, the ops as each worker must have placed them, one replica each.

    Workers run the step by themselves and keep their graphs, so TensorFlow's rules are applied to
    the traced one. Without parameter servers there are none.
    """
    return [
        replace(op, replica=index)
        for index, device in enumerate(_remote_devices(model))
        for op in place_ops(ops_of_traced(traced.nodes(), device), scopes)
    ]


def moved_ops_of(ops: Iterable[OpPlacement]) -> list[MovedOps]:
    counts = Counter((op.layer, op.op, op.asked, op.got, op.reason) for op in ops if op.reason)
    return [
        MovedOps(layer, op, asked, got, count, reason)
        for (layer, op, asked, got, reason), count in counts.items()
    ]


def obstacle(node: Any, device: str) -> str:
    """Why a node cannot run on the device it asks for, or `""` if it can.

    Args:
        node: The op as it was traced.
        device: The device, which may leave its kind open.
    """
    kind = kind_of(device)
    reason = missing_kernel(node, kind) if kind and _has_kernels(kind) else ""
    return reason or ("" if is_there(device) else f"{short(device)} is not available")


def _has_kernels(kind: str) -> bool:
    """Whether this TensorFlow has kernels for a kind of device at all, built in or from a plug-in.

    The package `tensorflow-cpu` has none for GPUs, and does not know which ops could run there.
    """
    return is_there(f"/device:{kind}:*") or bool(tf.test.is_built_with_gpu_support())


def _remote_devices(model: Any) -> list[str]:
    """One device per worker: its first GPU or, without one, its first CPU."""
    if not isinstance(model.distribute_strategy, tf.distribute.ParameterServerStrategy):
        return []
    by_task: dict[str, list[str]] = defaultdict(list)
    for device in tf.config.list_logical_devices():
        if "/job:worker" in device.name:
            by_task[device.name.partition("/device:")[0]].append(device.name)
    return [
        next((each for each in names if kind_of(each) == "GPU"), names[0])
        for names in by_task.values()
    ]


def _place(op: ExecutedOp, scopes: LayerScopes) -> OpPlacement:
    layer, replica = scopes.owner_of(op.name)
    reason = "" if not op.asked or satisfies(op.got, op.asked) else _reason(op)
    return OpPlacement(op.name, op.op, layer, replica, short(op.asked), short(op.got), reason)


def _reason(op: ExecutedOp) -> str:
    reason = obstacle(op.node, op.asked)
    if reason:
        return reason
    if "resource" in op.node.op.lower() or "Variable" in op.node.op:
        return "it runs where its variable is"
    return "TensorFlow's placer chose that device"
