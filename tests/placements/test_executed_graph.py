"""The graphs that TensorFlow ran, on graphs of a few nodes that stand for what it keeps."""

import tensorflow as tf

from keras_mgpu.placements.executed_graph import ops_of

CPU = "/job:localhost/replica:0/task:0/device:CPU:0"


def graphs(traced, executed):
    """What TensorFlow keeps of a function: the graph as traced, and one part per device."""
    found = tf.compat.v1.RunMetadata.FunctionGraphs()
    found.pre_optimization_graph.node.extend(traced)
    found.partition_graphs.add().node.extend(executed)
    return found


def node(name, op, device="", **types):
    made = tf.compat.v1.NodeDef(name=name, op=op, device=device)
    for attribute, dtype in types.items():
        made.attr[attribute].type = dtype.as_datatype_enum
    return made


def test_an_op_that_was_rewritten_keeps_its_type_and_the_device_it_asked_for():
    traced = [node("dense_1/MatMul", "MatMul", "/device:GPU:0", T=tf.float32)]
    executed = [node("dense_1/MatMul", "_MklMatMul", CPU, T=tf.float32)]
    (op,) = ops_of(graphs(traced, executed))
    assert (op.op, op.asked, op.got) == ("MatMul", "/device:GPU:0", CPU)
    # Kernels are looked up for what was placed. `_MklMatMul` has none for a GPU.
    assert op.node == traced[0]


def test_an_op_that_tensorflow_added_asked_for_nothing():
    (op,) = ops_of(graphs([], [node("dense_1/Relu/fused", "_UnaryOpsComposition", CPU)]))
    assert (op.op, op.asked, op.got) == ("_UnaryOpsComposition", "", CPU)
