"""Keeps integers that are data on the device: token ids, segment ids, what masks are made of.

TensorFlow takes every `int32` for a shape. On GPUs, arguments and results of calls that are `int32`
lie in the host's memory, and most arithmetic on `int32` is done there. For shapes that is right.
For data it means copies to the host and back in every stage. So data crosses calls as the same bits
under another type, what only rearranges it works on such bits too, and what the device can compute
only of `int64` is computed of `int64`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from keras_mgpu.internals.tf_functions import CALLS
from keras_mgpu.system.devices import kind_of
from keras_mgpu.system.kernel_support import kernel_for

BITS = tf.uint32  # Of the same size as `int32`, and like all other types on the device.
WIDE = tf.int64
TYPE = "T"  # The attribute that says what an op computes of.
# Ops that compute nothing. TensorFlow's optimizer would move a cast behind them, and so bring back
# what is to be avoided.
REARRANGING = frozenset(
    (
        "ConcatV2",
        "ExpandDims",
        "Identity",
        "Pack",
        "Reshape",
        "Slice",
        "Split",
        "Squeeze",
        "StridedSlice",
        "Tile",
        "Transpose",
        "Unpack",
    )
)


class DeviceIntegers:
    """Which `int32` tensors of a function's graph lie on the device.

    Args:
        device: Where the function runs. On a CPU, and on no device, nothing lies elsewhere.
    """

    def __init__(self, device: str) -> None:
        self._kind = "" if kind_of(device) == "CPU" else kind_of(device)
        self._found: dict[object, bool] = {}
        self._disguises: dict[tf.Operation, tf.DType | None] = {}

    def are_in(self, tensor: tf.Tensor) -> bool:
        """Whether a tensor holds integers that lie on the device."""
        if tensor.dtype != tf.int32 or not self._kind:
            return False
        if tensor.ref() not in self._found:
            self._found[tensor.ref()] = self._lies_on_device(tensor)
        return self._found[tensor.ref()]

    def disguise_for(self, op: tf.Operation) -> tf.DType | None:
        """The type under which an op works on such integers, if the device cannot do it as it is.

        `None` where nothing has to be done, or can be done.
        """
        if not self._kind:
            return None
        if op not in self._disguises:
            self._disguises[op] = self._find_disguise_for(op)
        return self._disguises[op]

    def _lies_on_device(self, tensor: tf.Tensor) -> bool:
        op = tensor.op
        if op.type == "Placeholder":  # An argument: a single number is no data.
            return bool(tensor.shape.rank != 0)
        if op.type in CALLS:
            return False
        if self.disguise_for(op) is not None and tensor.value_index in _places(
            op, op.op_def.output_arg
        ):
            return True
        kernel = kernel_for(op.node_def, self._kind)
        return kernel is not None and _name_of_output(op, tensor.value_index) not in kernel.on_host

    def _find_disguise_for(self, op: tf.Operation) -> tf.DType | None:
        node = op.node_def
        if TYPE not in node.attr or node.attr[TYPE].type != tf.int32.as_datatype_enum:
            return None
        data = [op.inputs[place] for place in _places(op, op.op_def.input_arg)]
        if op.op_def.is_stateful or not any(self.are_in(tensor) for tensor in data):
            return None
        if self._runs_on_device(op, node):
            return None
        other = type(node).FromString(node.SerializeToString())
        for dtype in (BITS, WIDE) if op.type in REARRANGING else (WIDE,):
            other.attr[TYPE].type = dtype.as_datatype_enum
            if self._runs_on_device(op, other):
                return dtype
        return None

    def _runs_on_device(self, op: tf.Operation, node: Any) -> bool:
        """Whether a kernel has on the device what the op computes of."""
        kernel = kernel_for(node, self._kind)
        arguments = [*op.op_def.input_arg, *op.op_def.output_arg]
        data = {each.name for each in arguments if each.type_attr == TYPE}
        return kernel is not None and not data & kernel.on_host


def as_bits(tensor: tf.Tensor) -> tf.Tensor:
    return tf.bitcast(tensor, BITS)


def as_integers(tensor: tf.Tensor) -> tf.Tensor:
    return tf.bitcast(tensor, tf.int32)


class Conversions:
    """Writes conversions into a function definition, for integers that lie on the device.

    Args:
        definition: The function definition.
        device: Where the function runs.
    """

    def __init__(self, definition: Any, device: str) -> None:
        self._definition = definition
        self._device = device

    def convert(self, name: str, source: str, before: tf.DType, after: tf.DType) -> str:
        """Writes a conversion between two types; returns its output.

        To and from `WIDE` values are converted, to and from `BITS` only their type.
        """
        is_cast = WIDE in (before, after)
        types, output = (("SrcT", "DstT"), "y") if is_cast else (("T", "type"), "output")
        node = self._definition.node_def.add(
            name=name, op="Cast" if is_cast else "Bitcast", input=[source], device=self._device
        )
        for attribute, dtype in zip(types, (before, after)):
            node.attr[attribute].type = dtype.as_datatype_enum
        return f"{name}:{output}:0"

    def disguise(self, op: tf.Operation, node: Any, dtype: tf.DType) -> dict[int, str]:
        """Has a node that was written for an op work on another type, between conversions.

        Returns:
            For outputs that are integers, by their place, what others read instead.
        """
        for place in _places(op, op.op_def.input_arg):
            name, source = f"{node.name}/input_{place}", node.input[place]
            constant = tf.get_static_value(op.inputs[place])
            if constant is None:
                node.input[place] = self.convert(name, source, tf.int32, dtype)
            else:
                node.input[place] = self._write_constant(name, constant, dtype)
        node.attr[TYPE].type = dtype.as_datatype_enum
        outputs, names = {}, _names(op, op.op_def.output_arg)
        for place in _places(op, op.op_def.output_arg):
            name = names[place][0]
            source = f"{node.name}:{name}:{place - [each for each, _ in names].index(name)}"
            outputs[place] = self.convert(f"{node.name}/output_{place}", source, dtype, tf.int32)
        return outputs

    def _write_constant(self, name: str, value: np.ndarray, dtype: tf.DType) -> str:
        """Writes a constant under another type: on the device from the start."""
        is_wide = dtype == WIDE
        value = value.astype("int64") if is_wide else value.view(dtype.as_numpy_dtype)
        node = self._definition.node_def.add(name=name, op="Const", device=self._device)
        node.attr["dtype"].type = dtype.as_datatype_enum
        node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(value, dtype))
        return f"{name}:output:0"


def _names(op: tf.Operation, arguments: Sequence[Any]) -> list[tuple[str, bool]]:
    """For each input or output, its name and whether it is of the op's type."""
    found: list[tuple[str, bool]] = []
    for each in arguments:
        size = 1
        if each.number_attr:
            size = int(op.get_attr(each.number_attr))
        elif each.type_list_attr:
            size = len(op.get_attr(each.type_list_attr))
        found += [(str(each.name), each.type_attr == TYPE)] * size
    return found


def _places(op: tf.Operation, arguments: Sequence[Any]) -> list[int]:
    """The places of inputs or outputs that are of the op's type."""
    return [place for place, (_, is_typed) in enumerate(_names(op, arguments)) if is_typed]


def _name_of_output(op: tf.Operation, place: int) -> str:
    return _names(op, op.op_def.output_arg)[place][0]
