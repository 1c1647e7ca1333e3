"""Traced functions, and functions inside their graphs."""

import tensorflow as tf

from keras_mgpu.internals import tf_functions


@tf.function(**tf_functions.KEEP_AS_CALL)
def double(x):
    return 2.0 * x


def test_a_graph_for_each_trace():
    function = tf.function(lambda x: x + x)
    assert tf_functions.is_traced(function)
    assert not tf_functions.is_traced(lambda x: x)
    assert tf_functions.graphs_of(function) == []
    function(tf.ones(2))
    function(tf.ones((2, 2)))
    assert len(tf_functions.graphs_of(function)) == 2


def test_a_function_that_stays_a_call_can_be_followed():
    outer = tf.function(lambda x: double(x) + 1.0)
    graph = outer.get_concrete_function(tf.TensorSpec((3,))).graph
    [call] = [op for op in graph.get_operations() if op.type in tf_functions.CALLS]
    [attribute] = tf_functions.CALLS[call.type]
    name = call.get_attr(attribute).name
    [written] = [
        each for each in graph.as_graph_def().library.function if each.signature.name == name
    ]
    assert written.attr[tf_functions.NO_INLINE].b
    inner = tf_functions.functions_in(graph)[name]
    assert "Mul" in {op.type for op in inner.get_operations()}
    assert tf_functions.call_options() == call.get_attr("config_proto")


def test_what_is_built_in_a_scratch_graph_has_no_value():
    with tf_functions.scratch_graph("trial").as_default():
        inside = double(tf.ones(2))
    assert not tf_functions.is_eager(inside)
    assert tf_functions.is_eager(double(tf.ones(2)))


def test_a_dataset_made_again_of_its_tensor():
    data = tf.data.Dataset.range(3)
    again = tf.data.experimental.from_variant(tf_functions.variant_of(data), data.element_spec)
    assert [int(each) for each in again] == [0, 1, 2]
