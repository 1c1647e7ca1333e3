"""The graphs that TensorFlow ran, on graphs of a few nodes that stand for what it keeps."""

import tensorflow as tf

from keras_mgpu.placements.executed_graph import Send, ops_of_traced, read_graph

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
    (op,) = read_graph(graphs(traced, executed)).ops
    assert (op.op, op.asked, op.got) == ("MatMul", "/device:GPU:0", CPU)
    # Kernels are looked up for what was placed. `_MklMatMul` has none for a GPU.
    assert op.node == traced[0]


def test_an_op_that_tensorflow_added_asked_for_nothing():
    (op,) = read_graph(graphs([], [node("dense_1/Relu/fused", "_UnaryOpsComposition", CPU)])).ops
    assert (op.op, op.asked, op.got) == ("_UnaryOpsComposition", "", CPU)


def test_ops_that_compute_nothing_are_left_out():
    nodes = [node("x", "_Arg", CPU), node("c", "Const", CPU), node("y", "Relu", CPU)]
    assert [op.name for op in read_graph(graphs(nodes, nodes)).ops] == ["y"]


def called(name, function, device=""):
    made = node(name, "PartitionedCall", device)
    made.attr["f"].func.name = function
    return made


def test_ops_of_a_called_function_are_placed_by_the_rules():
    found = graphs([called("call", "body")], [called("call", "body", CPU)])
    body = tf.compat.v1.GraphDef().library.function.add()
    body.signature.name = "body"
    body.node_def.extend([node("a", "Relu", "/device:CPU:1"), node("b", "Relu", "/device:GPU:9")])
    for graph in (found.pre_optimization_graph, found.partition_graphs[0]):
        graph.library.function.append(body)
    ops = {op.name: (op.asked, op.got[-5:]) for op in read_graph(found).ops}
    assert ops["call/a"] == ("/device:CPU:1", "CPU:1")
    assert ops["call/b"] == ("/device:GPU:9", "CPU:0")


def test_numbers_of_inlined_loops_are_dropped():
    traced = [node("while/body/Relu", "Relu", "/device:CPU:1")]
    (op,) = read_graph(graphs(traced, [node("while/body/_12/Relu", "Relu", CPU)])).ops
    assert (op.name, op.asked) == ("while/body/Relu", "/device:CPU:1")


def test_traced_ops_on_the_device_of_another_process():
    worker = "/job:worker/replica:0/task:0/device:CPU:0"
    ops = list(ops_of_traced([node("x", "Placeholder"), node("y", "Relu")], worker))
    assert [(op.name, op.got) for op in ops] == [("y", worker)]


def test_sends_without_signals():
    def send(name, tensor):
        made = node(name, "_Send", CPU)
        made.input.append(tensor)
        made.attr["send_device"].s = b"/device:CPU:0"
        made.attr["recv_device"].s = b"/device:CPU:1"
        return made

    nodes = [send("s1", "dense/MatMul"), send("s2", "split:1"), send("s3", "dense/ctrl/_4")]
    assert read_graph(graphs([], nodes)).sends == [
        Send("dense/MatMul:0", "/device:CPU:0", "/device:CPU:1"),
        Send("split:1", "/device:CPU:0", "/device:CPU:1"),
    ]
