"""Cutting a graph of ten ops: what runs when, and what is kept in between."""

import pytest
import tensorflow as tf

from keras_mgpu.internals.tf_functions import scratch_graph
from keras_mgpu.pipeline.stage.graph_cut import GraphOps, Piece, TrainingGraph, find_kept
from keras_mgpu.pipeline.stage.piece_function import PieceMaker


class Small:
    """`body(x, w)` in a graph of its own, with its gradients for `x` and for `w`."""

    def __init__(self, body):
        self.graph = scratch_graph("small")
        with self.graph.as_default():
            self.x = tf.compat.v1.placeholder(tf.float32, (None, 3), "x")
            self.w = tf.compat.v1.placeholder(tf.float32, (3, 3), "w")
            self.y = tf.identity(body(self.x, self.w), "y")
            self.given = tf.compat.v1.placeholder(tf.float32, self.y.shape, "given")
            self.of_x, self.of_w = tf.gradients(self.y, [self.x, self.w], grad_ys=[self.given])
        self.ops = GraphOps(self.graph)

    @property
    def kept(self):
        return find_kept(
            self.ops,
            TrainingGraph(
                inputs=[self.x, self.w],
                outputs=[self.y],
                cotangents=[self.given],
                input_gradients=[self.of_x],
                weight_gradients=[self.of_w],
                weights=[self.w],
            ),
        )

    def needed(self, feeds, fetches):
        return {op.type for op in self.ops.needed_for(Piece(feeds, fetches)).ops}


def test_what_the_backward_reads_is_kept_and_nothing_else():
    small = Small(lambda x, w: tf.exp(tf.sin(x @ w)))
    assert {tensor.op.type for tensor in small.kept.forward} == {"MatMul", "Exp"}


def test_weights_and_what_is_computed_of_them_alone_are_never_kept():
    small = Small(lambda x, w: x @ tf.transpose(tf.abs(w)))
    kept = small.kept
    assert not {"Transpose", "Abs", "Sign"} & {t.op.type for t in (*kept.forward, *kept.backward)}
    assert small.w.ref() not in {tensor.ref() for tensor in kept.for_backward}


def test_a_tensor_of_which_only_the_shape_is_needed_is_not_kept():
    small = Small(lambda x, w: tf.reduce_sum(x @ w, axis=1, keepdims=True))
    shapes = {tensor.op.type for tensor in small.kept.forward}
    assert "MatMul" not in shapes
    assert "Shape" in shapes


def test_gradients_of_weights_are_left_out_of_the_backward():
    small = Small(lambda x, w: tf.tanh(x) @ w)
    kept = small.kept
    feeds = (*kept.for_backward, small.given, small.w)
    backward = small.ops.needed_for(Piece(feeds, (small.of_x,))).ops
    assert small.of_w.op not in backward
    assert small.of_x.op in backward
    # What the backward has computed is not computed again for the weights.
    last = small.ops.needed_for(Piece((*kept.for_weights, small.w), (small.of_w,))).ops
    assert not set(last) & set(backward)


def test_an_op_that_repeats_another_stands_for_it():
    small = Small(lambda x, w: tf.tanh(x @ w) * tf.tanh(x @ w))
    first, second = (op for op in small.graph.get_operations() if op.type == "Tanh")
    assert small.ops.one_of(second.outputs[0]) is first.outputs[0]


def test_an_op_that_must_run_runs_although_nobody_reads_it():
    small = Small(lambda x, w: x @ w)
    with small.graph.as_default():
        check = tf.debugging.assert_less(tf.reduce_max(small.x), 10.0)
    content = GraphOps(small.graph).needed_for(Piece((small.x, small.w), (small.y,), (check,)))
    assert check in content.ops


@pytest.mark.parametrize("stays_a_call", [True, False])
def test_pieces_together_give_the_gradients_of_the_whole(stays_a_call):
    small = Small(lambda x, w: tf.exp(tf.sin(x @ w)))
    kept, make = small.kept, PieceMaker(stays_a_call)
    arguments = (small.x, small.w)
    forward = make(small.ops, Piece(arguments, (small.y, *kept.forward)), "forward")
    feeds = (*kept.for_backward, small.given, small.w)
    backward = make(small.ops, Piece(feeds, (small.of_x, *kept.backward)), "backward")
    last = make(small.ops, Piece((*kept.for_weights, small.w), (small.of_w,)), "weights")

    @tf.function(autograph=False)
    def step(x, w):
        tensors = {small.x.ref(): x, small.w.ref(): w}
        y, *results = forward([x, w]).results
        tensors |= {t.ref(): r for t, r in zip(kept.forward, results)}
        tensors[small.given.ref()] = tf.ones_like(y)
        of_x, *results = backward([tensors[t.ref()] for t in feeds]).results
        tensors |= {t.ref(): r for t, r in zip(kept.backward, results)}
        (of_w,) = last([tensors[t.ref()] for t in (*kept.for_weights, small.w)]).results
        return y, of_x, of_w

    x, w = tf.random.normal((4, 3)), tf.random.normal((3, 3))
    with tf.GradientTape() as tape:
        tape.watch([x, w])
        expected = tf.exp(tf.sin(x @ w))
    y, of_x, of_w = step(x, w)
    tf.debugging.assert_near(y, expected)
    for found, wanted in zip((of_x, of_w), tape.gradient(expected, [x, w])):
        tf.debugging.assert_near(found, wanted)


def test_a_piece_that_returns_nothing_can_be_waited_for():
    small = Small(lambda x, w: x @ w)
    make = PieceMaker(stays_a_call=True)
    empty = make(small.ops, Piece((small.x,), ()), "nothing")
    with scratch_graph("step").as_default():
        called = empty([tf.zeros((2, 3))])
    assert called.results == []
    assert called.done.op.type == "PartitionedCall"
