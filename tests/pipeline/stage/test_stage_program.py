"""A stage's program, step by step, on a stage of one product and no Keras layer."""

import keras
import numpy as np
import tensorflow as tf
from simulated import DEVICES

from keras_mgpu.internals.keras_masks import pack
from keras_mgpu.model.stages import Stage
from keras_mgpu.pipeline.stage.gradients import GradientVariables
from keras_mgpu.pipeline.stage.graph_cut import GraphOps, TrainingGraph, find_kept
from keras_mgpu.pipeline.stage.measuring import call_once, measure, run_each
from keras_mgpu.pipeline.stage.piece_function import PieceMaker
from keras_mgpu.pipeline.stage.stage_function import StageNotes, StageTensors, StageTrace
from keras_mgpu.pipeline.stage.stage_program import (
    StageGraph,
    complete_graph,
    cut_into_pieces,
    differentiate,
    float_leaves,
    make_program,
    sum_in_place,
)

X, W = np.ones((2, 3), "float32"), np.full((3, 3), 0.5, "float32")
STAGE = Stage(0, DEVICES[0], calls=(), inputs=(0,), outputs=(1,), variables=(), borrowed=())


def traced(weight):
    """`tanh(x @ weight)` as the trace of a stage that takes value 0 and returns value 1."""

    def body(x):
        return StageTensors([tf.tanh(x @ weight.value)], [], [], [])

    spec = tf.TensorSpec((None, 3), tf.float32)
    function = tf.function(body, autograph=False).get_concrete_function(spec)
    _, layout = pack([tf.constant(X)])
    notes = StageNotes(layout, loss_calls=[], assigned=[], masked_norms=[])
    return StageTrace(function, function, notes, layout, handed_in=[])


def differentiated(weight, made=(0,)):
    return differentiate(StageGraph(STAGE, traced(weight), [weight]), made, [(1, 0)])


def kept_in(graph):
    return find_kept(
        GraphOps(graph.graph),
        TrainingGraph(
            inputs=graph.arguments,
            outputs=graph.outputs,
            cotangents=graph.given,
            input_gradients=list(graph.of_inputs.values()),
            weight_gradients=[g for g in graph.of_weights if g is not None],
        ),
    )


def expected(weight):
    with tf.GradientTape() as tape:
        x = tf.constant(X)
        tape.watch(x)
        y = tf.tanh(x @ weight.value)
    return y, *tape.gradient(y, [x, weight.value])


def test_leaves_that_can_have_gradients():
    values = [{"a": tf.zeros(2), "b": tf.zeros(2, tf.int32)}, None]
    assert list(float_leaves([4, 7], values)) == [(4, 0)]


def test_inputs_from_the_data_get_no_gradient():
    weight = keras.Variable(W)
    assert list(differentiated(weight).of_inputs) == [(0, 0)]
    from_data = differentiated(weight, made=())
    assert list(from_data.of_inputs) == []
    assert from_data.of_weights[0] is not None


def test_a_weight_that_is_not_read_has_no_gradient():
    weight, other = keras.Variable(W), keras.Variable(W)
    graph = differentiate(StageGraph(STAGE, traced(weight), [weight, other]), (0,), [(1, 0)])
    assert [gradient is None for gradient in graph.of_weights] == [False, True]


def test_an_output_without_gradient_gives_none():
    weight = keras.Variable(W)
    graph = differentiate(StageGraph(STAGE, traced(weight), [weight]), (0,), cotangents=[])
    assert graph.of_inputs == {}
    assert graph.of_weights == [None]


def test_dense_gradients_are_summed_in_place_and_not_returned():
    graph = differentiated(keras.Variable(W))
    assert sum_in_place(graph, None) is graph
    summed = sum_in_place(graph, GradientVariables(DEVICES[0]))
    assert [op.type for op in summed.summing] == ["AssignAddVariableOp"]
    assert summed.of_weights == [None]


def test_each_kind_of_op_gets_a_piece():
    graph = differentiated(keras.Variable(W))
    kept = kept_in(graph)
    assert set(cut_into_pieces(graph, kept, "FB")) == {"forward", "backward"}
    assert set(cut_into_pieces(graph, kept, "FRBW")) == {
        "forward",
        "recompute",
        "backward",
        "weights",
    }
    # Only a forward that is not recomputed hands on what the backward needs.
    alone, again = cut_into_pieces(graph, kept, "FB"), cut_into_pieces(graph, kept, "FRB")
    assert len(alone["forward"].fetches) == 1 + len(kept.forward)
    assert len(again["forward"].fetches) == 1


def test_a_program_computes_what_a_tape_does():
    weight = keras.Variable(W)
    graph = complete_graph(
        traced(weight), STAGE, [weight], made=(0,), cotangents=[(1, 0)], sums=None
    )
    for kinds in ("FB", "FRB", "FBW", "FRBW"):
        program = make_program(graph, [(1, 0)], kinds, PieceMaker(True))

        @tf.function(autograph=False)
        def step(program=program):
            values = run_each(program, lambda tensor: tf.constant(X), call_once)
            of_weights = program.graph.of_weights
            found = [*program.graph.outputs, program.graph.of_inputs[0, 0], *of_weights]
            return [values[tensor.ref()] for tensor in found]

        for value, reference in zip(step(), expected(weight)):
            np.testing.assert_allclose(value, reference, rtol=1e-6)


def test_what_is_measured_runs_although_it_returns_nothing():
    """Gradients that are summed in place are not returned. Here, a zero takes the place of one."""
    weight, sums = keras.Variable(W), GradientVariables("/CPU:0")
    weight.overwrite_with_gradient = True
    graph = complete_graph(
        traced(weight), STAGE, [weight], made=(0,), cotangents=[(1, 0)], sums=sums
    )
    sums.take_memory()
    sums.add(weight, tf.ones(weight.shape))
    program = make_program(graph, [(1, 0)], "FBW", PieceMaker(True))
    measure(program, num_samples=5, num_rounds=1)
    np.testing.assert_array_equal(sums.read([])[weight], np.zeros(weight.shape))


def test_measuring_counts_what_is_kept():
    weight = keras.Variable(W)
    graph = complete_graph(
        traced(weight), STAGE, [weight], made=(0,), cotangents=[(1, 0)], sums=None
    )
    measured = measure(
        make_program(graph, [(1, 0)], "FB", PieceMaker(True)), num_samples=5, num_rounds=1
    )
    assert set(measured.seconds) == {"forward", "backward"}
    assert measured.recompute_seconds == measured.seconds["forward"]
    assert measured.inputs == 5 * 3 * 4
    assert measured.activations == 2 * 5 * 3 * 4  # The input, and the result of tanh.
    assert measured.for_weights == 0
