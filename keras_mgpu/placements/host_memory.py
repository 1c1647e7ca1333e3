"""Which inputs and outputs of an op are in the host's memory, although it runs on a GPU.

Kernels take shapes, axes and the like from the host's memory, and leave them there. Functions do so
with all integers of 32 bits. What a neighbouring op wants on the GPU is copied.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf

from keras_mgpu.internals.tf_function_bodies import num_tensors
from keras_mgpu.internals.tf_functions import CALLS, MUST_COMPILE
from keras_mgpu.system.kernel_support import kernel_for

ALWAYS = frozenset([tf.string, tf.resource])
IN_CALLS = ALWAYS | {tf.int32}  # Arguments and results of functions.


def inputs_on_host(op: tf.Operation, node: Any, device_type: str) -> list[bool]:
    """For each input of an op on a kind of device, whether it is in the host's memory."""
    return _on_host([each.dtype for each in op.inputs], op.op_def.input_arg, node, device_type)


def outputs_on_host(op: tf.Operation, node: Any, device_type: str) -> list[bool]:
    """For each output of an op on a kind of device, whether it is in the host's memory."""
    return _on_host([each.dtype for each in op.outputs], op.op_def.output_arg, node, device_type)


def _on_host(
    dtypes: Sequence[tf.DType], arguments: Iterable[Any], node: Any, device_type: str
) -> list[bool]:
    kernel = kernel_for(node, device_type)
    is_call = kernel is None or node.op in CALLS
    by_type = IN_CALLS if is_call and not node.attr[MUST_COMPILE].b else ALWAYS
    named = () if kernel is None else kernel.on_host
    names = [each.name for each in arguments for _ in range(num_tensors(each, node))]
    return [dtype in by_type or name in named for dtype, name in zip(dtypes, names)]
