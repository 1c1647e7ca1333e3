"""The graphs that TensorFlow runs, where somebody looks."""

import tensorflow as tf

from keras_mgpu.internals.tf_graph_collection import collecting, forget_placements


def ops_of(graphs):
    return {node.op for graph in graphs for node in graph.post_optimization_graph.node}


def test_a_function_is_seen_when_it_first_runs():
    function = tf.function(lambda x: tf.linalg.matvec(x, x[0]))
    with collecting() as first:
        function(tf.eye(2))
    assert first
    with collecting() as second:
        function(tf.eye(2))
    assert not second


def test_a_function_that_ran_before_can_be_made_to_show_itself():
    function = tf.function(lambda x: tf.exp(x))
    function(tf.ones(2))
    forget_placements()
    with collecting() as found:
        function(tf.ones(2))
    assert "Exp" in ops_of(found)


def test_one_who_looks_inside_another_who_looks():
    outer_function, inner_function = tf.function(tf.sin), tf.function(tf.cos)
    with collecting() as outer:
        outer_function(tf.ones(2))
        with collecting() as inner:
            inner_function(tf.ones(2))
    assert "Cos" in ops_of(inner)
    assert ops_of(outer) >= {"Sin", "Cos"}
