"""The schedule is real: its order and its devices are read back from the traced graph."""

import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from keras_mgpu.blueprint import named_schedules, partition
from keras_mgpu.blueprint.schedule import Op
from keras_mgpu.internals.tf_functions import scratch_graph
from keras_mgpu.model import layer_calls
from keras_mgpu.model.layer_costs import layer_costs
from keras_mgpu.model.stages import make_stages
from keras_mgpu.pipeline import micro_batches
from keras_mgpu.pipeline.executor import StepData, Trainer, weights_of
from keras_mgpu.pipeline.stage.stage_function import StageFunction
from keras_mgpu.pipeline.stage.traced_stage import TracedStage
from keras_mgpu.pipeline.state_flow import StateFlow, norms_by_statistic

GPUS = [f"/GPU:{index}" for index in range(4)]


def residual_mlp():
    inputs = keras.Input((4,))
    x = first = layers.Dense(4, activation="tanh")(inputs)
    for _ in range(6):
        x = layers.Dense(4, activation="tanh")(x)
    x = layers.BatchNormalization()(x + first)
    return keras.Model(inputs, layers.Dense(2)(layers.Dropout(0.5)(x)))


class SumOfOutputs:
    """A head whose loss is the sum of all outputs."""

    couples_samples = False

    def __init__(self):
        self.outputs = []

    def take_outputs(self, micro_batch, outputs):
        self.outputs.append(outputs[0])

    def take_losses(self, micro_batch, losses, calls):
        return []

    def output_gradients(self, micro_batch):
        return [[tf.ones_like(self.outputs[micro_batch])]]


def trace(devices, schedule, make_model=residual_mlp):
    """Traces a step whose stages are pinned to devices, which need not be there."""
    model = make_model()
    calls = layer_calls.from_model(model)
    plan = partition.balance(layer_costs(calls), len(devices))
    stages = make_stages(calls, plan, devices)
    functions = [StageFunction(stage, training=True, stays_a_call=True) for stage in stages]
    num, weights = schedule.num_micro_batches, model.trainable_weights
    made = {number for stage in stages for number in stage.outputs}
    training_stages = [
        TracedStage(
            function,
            weights_of(function, weights),
            made,
            schedule.kinds_of(function.stage.index),
            num_micro_batches=num,
            stays_a_call=True,
        )
        for function in functions
    ]
    trainer = Trainer(functions, training_stages, weights)

    @tf.function(autograph=False)
    def step(x):
        sizes = micro_batches.sizes_of(x, num)
        feeds = [{calls.inputs[0]: part} for part in micro_batches.split(x, sizes)]

        def data():
            state = StateFlow(sizes, norms_by_statistic(stages))
            return StepData(feeds, calls.outputs, SumOfOutputs(), state)

        with scratch_graph("rehearsal").as_default():
            trainer.rehearse(schedule, data())
        return trainer.run(schedule, data())

    return step.get_concrete_function(tf.TensorSpec((None, 4), model.input.dtype))


def pipeline_ops(graph):
    """The calls of stages in a graph, by the op of the schedule that their name tells."""
    found = {}
    for node in graph.get_operations():
        op = Op.from_scope(node.name)
        if op is not None and node.type.endswith("PartitionedCall"):
            found[op] = node
    return found


def is_before(first, second):
    """Whether an edge, of data or of control, leads from one node to another."""
    seen, waiting = set(), [second]
    while waiting:
        node = waiting.pop()
        if node is first:
            return True
        if node.name not in seen:
            seen.add(node.name)
            waiting += [tensor.op for tensor in node.inputs] + list(node.control_inputs)
    return False


@pytest.mark.parametrize(
    "schedule",
    [
        named_schedules.gpipe(2, 3),
        named_schedules.one_f_one_b(4, 6),
        named_schedules.interleaved(4, 4, num_lanes=2),
        named_schedules.zero_bubble(3, 4),
        named_schedules.recomputing(named_schedules.one_f_one_b(3, 4), [0, 2]),
    ],
    ids=lambda schedule: f"{schedule.name}-{''.join(sorted(schedule.kinds_of(0)))}",
)
def test_traced_graph_has_the_order_and_devices_of_the_schedule(schedule):
    lanes = schedule.lane_of_stage
    nodes = pipeline_ops(trace([GPUS[lane] for lane in lanes], schedule).graph)
    assert set(nodes) == {op for lane in schedule.lanes for op in lane}
    for index, lane in enumerate(schedule.lanes):
        for op in lane:
            assert nodes[op].device == f"/device:GPU:{index}"
        for before, after in itertools.pairwise(lane):
            assert is_before(nodes[before], nodes[after]), f"{before} before {after}"
            assert not is_before(nodes[after], nodes[before])


def test_recomputation_does_not_wait_for_the_gradient():
    schedule = named_schedules.recomputing(named_schedules.one_f_one_b(3, 4), [0])
    nodes = pipeline_ops(trace(GPUS[:3], schedule).graph)
    assert not is_before(nodes[Op("B", 1, 0)], nodes[Op("R", 0, 0)])
    assert is_before(nodes[Op("B", 1, 0)], nodes[Op("B", 0, 0)])


def test_schedules_trace_to_different_graphs():
    last_forward, first_backward = Op("F", 0, 5), Op("B", 0, 0)
    gpipe = pipeline_ops(trace(GPUS[:2], named_schedules.gpipe(2, 6)).graph)
    assert is_before(gpipe[last_forward], gpipe[first_backward])
    one_f = pipeline_ops(trace(GPUS[:2], named_schedules.one_f_one_b(2, 6)).graph)
    assert is_before(one_f[first_backward], one_f[last_forward])


def test_every_layer_is_pinned_inside_its_stage():
    """Ops inside the stages' functions name the device too, so nothing is left to a default."""
    from tensorflow.python.eager import context

    nodes = pipeline_ops(trace(GPUS, named_schedules.zero_bubble(4, 2)).graph)
    for op, node in nodes.items():
        body = context.context().get_function_def(node.get_attr("f").name)
        multiplications = [n for n in body.node_def if n.op == "MatMul"]
        assert multiplications or op.kind == "B", op
        assert all(n.device == f"/device:GPU:{op.stage}" for n in multiplications)


def test_a_table_is_read_once_a_step():
    """TensorFlow copies one that is written to by rows, whenever it is read."""
    from tensorflow.python.eager import context

    def lookup():
        inputs = keras.Input((4,), dtype="int32")
        return keras.Model(inputs, layers.Dense(2)(layers.Embedding(50, 8)(inputs)))

    step = trace(GPUS[:2], named_schedules.one_f_one_b(2, 4), lookup)
    reads = [op for op in step.graph.get_operations() if op.type == "ReadVariableOp"]
    assert len([op for op in reads if op.outputs[0].shape == (50, 8)]) == 1
    for op, node in pipeline_ops(step.graph).items():
        body = context.context().get_function_def(node.get_attr("f").name)
        has_read = any(n.op == "ReadVariableOp" for n in body.node_def)
        assert has_read == (op.stage == 1), op


def test_stages_run_on_their_devices(devices):
    """What was asked for is what the runtime did, backward passes included."""
    from tensorflow.python.eager import context

    step = trace(devices, named_schedules.one_f_one_b(4, 2))
    context.context().enable_graph_collection()
    try:
        step(tf.constant(np.ones((6, 4), "float32")))
        metadata = context.context().export_run_metadata()
    finally:
        context.context().disable_graph_collection()
    multiplied_on = set()
    for function in metadata.function_graphs:
        for graph in function.partition_graphs:
            nodes = [*graph.node, *(n for f in graph.library.function for n in f.node_def)]
            multiplied_on |= {node.device for node in nodes if "MatMul" in node.op}
    assert {name[-5:] for name in multiplied_on if name} == {name[1:] for name in devices}
