"""Definitions of functions, and their bodies as graphs.

A definition has no shapes but those of its arguments. A graph infers the others, and has types.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import context
from tensorflow.python.framework import op_def_registry

from keras_mgpu.internals.tf_functions import COLOCATION


def definition_of(name: str) -> Any | None:
    """The definition of a function of this process; `None` if there is none of this name."""
    try:
        return context.context().get_function_def(name)
    except tf.errors.NotFoundError:
        return None


def body_graph(definition: Any, num_samples: int) -> tuple[tf.Graph, list[tf.Tensor]] | None:
    """The body of a function's definition as a graph that has shapes, and what it returns.

    Placeholders, or handles of variables, take the place of arguments, with the shapes that the
    definition has for them.

    Args:
        definition: The definition.
        num_samples: The size of first dimensions that arguments leave open, if that can be.

    Returns:
        `None` if TensorFlow cannot make a graph of it, as with ops that it does not know.
    """
    for size in (num_samples, None):  # The former may contradict other shapes.
        try:
            return _import_body(definition, size)
        except ValueError:
            continue
    return None


def _import_body(definition: Any, num_samples: int | None) -> tuple[tf.Graph, list[tf.Tensor]]:
    body = tf.compat.v1.GraphDef()
    body.versions.producer = tf.version.GRAPH_DEF_VERSION
    names = {}
    for index, argument in enumerate(definition.signature.input_arg):
        _write_argument(body.node.add(), argument, definition.arg_attr[index].attr, num_samples)
        names[argument.name] = f"{argument.name}:0"
    for node in definition.node_def:
        names.update(_names_of_outputs(node))
    for node in definition.node_def:
        copied = body.node.add()
        copied.CopyFrom(node)
        copied.attr.pop(COLOCATION, None)
        copied.input[:] = [names.get(each, each) for each in node.input]
    returned = [names[definition.ret[each.name]] for each in definition.signature.output_arg]
    graph = tf.Graph()
    with graph.as_default():
        results = tf.graph_util.import_graph_def(body, name="", return_elements=returned)
    return graph, results


def _write_argument(node: Any, argument: Any, described: Any, num_samples: int | None) -> None:
    node.name = argument.name
    handle_shapes = described["_handle_shapes"].list.shape
    if argument.type == tf.resource.as_datatype_enum and handle_shapes:
        node.op = "VarHandleOp"
        node.attr["dtype"].type = described["_handle_dtypes"].list.type[0]
        node.attr["shape"].shape.CopyFrom(handle_shapes[0])
        return
    node.op = "Placeholder"
    node.attr["dtype"].type = argument.type
    for shape in described["_output_shapes"].list.shape:
        node.attr["shape"].shape.CopyFrom(shape)
        if num_samples is not None and shape.dim and shape.dim[0].size == -1:
            node.attr["shape"].shape.dim[0].size = num_samples


def _names_of_outputs(node: Any) -> Iterator[tuple[str, str]]:
    """Each output's name inside a function, such as `x:y:0`, and in a graph, such as `x:0`."""
    place, op = 0, op_def_registry.get(node.op)
    if op is None:
        raise ValueError(f"No such op. Received: op={node.op!r}")
    for output in op.output_arg:
        for index in range(num_tensors(output, node)):
            yield f"{node.name}:{output.name}:{index}", f"{node.name}:{place}"
            place += 1


def num_tensors(argument: Any, node: Any) -> int:
    """How many tensors one of the named inputs or outputs of a node consists of."""
    if argument.number_attr:
        return int(node.attr[argument.number_attr].i)
    if argument.type_list_attr:
        return len(node.attr[argument.type_list_attr].list.type)
    return 1
