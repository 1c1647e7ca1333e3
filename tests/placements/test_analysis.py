"""From ops to the rows of a report: layers, devices, moved ops and transfers."""

import keras
import pytest
import tensorflow as tf

from keras_mgpu.placements.analysis import make_report
from keras_mgpu.placements.executed_graph import ExecutedOp, read_graph
from keras_mgpu.placements.layer_facts import facts_of
from keras_mgpu.placements.layer_placements import count_ops, devices_of, layers_of
from keras_mgpu.placements.layer_scopes import LayerScopes
from keras_mgpu.placements.op_placements import (
    moved_ops_of,
    obstacle,
    place_ops,
    place_remote_ops,
)
from keras_mgpu.placements.report_parts import Collective, Edge, MovedOps, OpPlacement
from keras_mgpu.placements.traced_function import TracedFunction
from keras_mgpu.placements.transfers import collectives_of, edges_of

FULL = "/job:localhost/replica:0/task:0/device:CPU:{}"


@pytest.fixture(scope="module")
def model():
    layers = [keras.layers.Dense(4, name=name) for name in ("first", "second")]
    return keras.Sequential([keras.Input((4,)), *layers], name="net")


def node(name, op="Relu", device=""):
    made = tf.compat.v1.NodeDef(name=name, op=op, device=device)
    made.attr["T"].type = tf.float32.as_datatype_enum
    return made


def executed(name, op="Relu", asked="", device=0):
    return ExecutedOp(name, op, node(name, op), asked, FULL.format(device))


def test_ops_are_placed_with_the_reason(model):
    ops = [
        executed("net_1/first_1/Relu", asked="/device:CPU:0"),
        executed("net_1/first_1/Relu_1", asked="/device:GPU:0"),
        executed("net_1/first_1/AsString", "AsString", "/device:GPU:0"),
        executed("net_1/first_1/Read", "ReadVariableOp", "/device:CPU:1"),
        executed("net_1/first_1/Tanh", "Tanh", "/device:CPU:1"),
    ]
    placed = place_ops(ops, LayerScopes(model))
    assert {op.layer for op in placed} == {"first"}
    assert [op.reason for op in placed] == [
        "",
        "GPU:0 is not available",
        "no GPU kernel for AsString",
        "it runs where its variable is",
        "TensorFlow's placer chose that device",
    ]


def test_obstacles():
    assert obstacle(node("x"), "/device:CPU:1") == ""
    assert obstacle(node("x"), "/device:CPU:99") == "CPU:99 is not available"
    assert obstacle(node("x", "AsString"), "/device:GPU:0") == "no GPU kernel for AsString"


def test_a_tensorflow_without_kernels_for_gpus_cannot_tell_which_ops_have_one(monkeypatch):
    """As in the package `tensorflow-cpu`."""
    monkeypatch.setattr(tf.test, "is_built_with_gpu_support", lambda: False)
    assert obstacle(node("x", "AsString"), "/device:GPU:0") == "GPU:0 is not available"


def test_moved_ops_are_counted_by_type_and_reason():
    ops = [OpPlacement(f"x_{k}", "Relu", "first", 0, "GPU:0", "CPU:0", "why") for k in range(3)]
    ops.append(OpPlacement("y", "Relu", "first", 0, "CPU:0", "CPU:0"))
    assert moved_ops_of(ops) == [MovedOps("first", "Relu", "GPU:0", "CPU:0", 3, "why")]


def test_only_parameter_servers_have_remote_ops(model):
    assert place_remote_ops(model, TracedFunction(None, 1), LayerScopes(model)) == []


def placed(layer, replica, device, name="Relu"):
    return OpPlacement(name, "Relu", layer, replica, device, device)


def test_layers_and_devices(model):
    ops = [
        placed("first", 0, "CPU:1"),
        placed("first", 0, "CPU:1"),
        placed("first", 0, "CPU:0", "gradient_tape/Relu"),
        placed("first", 1, "CPU:2"),
        placed("(loss)", 0, "CPU:0"),
    ]
    facts = facts_of(model, LayerScopes(model), num_samples=2)
    counts = count_ops(ops)
    layers = {layer.path: layer for layer in layers_of(facts, counts)}
    assert list(layers) == ["first", "second", "(loss)"]
    assert layers["first"].got == (("CPU:1", "CPU:0"), ("CPU:2",))
    assert layers["first"].num_ops == 4
    assert layers["second"].got == ()
    assert layers["second"].weight_bytes == (4 * 4 + 4) * 4
    totals = {total.device: total for total in devices_of(facts, counts)}
    assert totals["CPU:1"].activation_bytes == totals["CPU:2"].activation_bytes == 2 * 4 * 4
    assert totals["CPU:0"].weight_bytes == 2 * (4 * 4 + 4) * 4
    assert (totals["CPU:0"].num_ops, totals["CPU:0"].num_layers) == (2, 1)


@pytest.fixture(scope="module")
def graphs():
    """Two tensors and a collective operation, of a function with one known tensor."""
    found = tf.compat.v1.RunMetadata.FunctionGraphs()
    part = found.partition_graphs.add()
    for tensor in ("known", "unknown"):
        made = part.node.add(name=f"send_{tensor}", op="_Send")
        made.input.append(tensor)
        made.attr["send_device"].s = FULL.format(0).encode()
        made.attr["recv_device"].s = FULL.format(1).encode()
    part.node.add(name="known", op="CollectiveReduceV2", device=FULL.format(0))
    part.node.add(name="group", op="CollectiveInitializeGroup", device=FULL.format(0))
    return [found]


@pytest.fixture(scope="module")
def traced():
    function = tf.function(lambda x: tf.identity(x, name="known"))
    function.get_concrete_function(tf.TensorSpec([3, 5]))
    return TracedFunction(function, 1)


def test_edges(graphs, traced):
    assert edges_of(map(read_graph, graphs), traced) == [
        Edge("CPU:0", "CPU:1", 2, 3 * 5 * 4, num_unknown=1)
    ]


def test_collectives(graphs, traced):
    expected = Collective("CPU:0", "CollectiveReduceV2", 1, 3 * 5 * 4)
    assert collectives_of(map(read_graph, graphs), traced) == [expected]


def test_graphs_that_run_no_layer_are_passed_over(model, graphs, traced):
    report = make_report(model, graphs, traced, num_samples=2)
    assert report.source == "variables"
    assert (report.ops, report.edges) == ((), ())
    assert [layer.path for layer in report.layers] == ["first", "second"]
