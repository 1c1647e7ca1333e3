"""Shapes and nodes of traced functions, without tracing them again."""

import tensorflow as tf

from keras_mgpu.placements.traced_function import TracedFunction

SPEC = tf.TensorSpec([None, 3])


@tf.function
def inner(x):
    return tf.square(x, name="squared")


@tf.function(input_signature=[SPEC])
def outer(x):
    return tf.while_loop(lambda i, y: i < 2, lambda i, y: (i + 1, inner(y)), [0, x])


def test_sizes_of_tensors():
    function = tf.function(lambda x: tf.identity(tf.matmul(x, tf.ones([3, 2])), name="out"))
    assert not TracedFunction(function, 1).is_traced
    function.get_concrete_function(SPEC)
    traced = TracedFunction(lambda x: function(x), num_samples=5)
    assert traced.is_traced
    assert traced.batch_size is None
    assert traced.num_bytes("out:0") == 5 * 2 * 4
    assert traced.num_bytes("missing:0") is None


def test_the_batch_size_if_it_was_traced():
    function = tf.function(lambda x: x + 1)
    function.get_concrete_function(tf.TensorSpec([7, 3]))
    assert TracedFunction(function, 1).batch_size == 7


def test_functions_inside_loops():
    outer.get_concrete_function()
    traced = TracedFunction(outer, num_samples=5)
    assert "Square" in {node.op for node in traced.nodes()}
    assert traced.num_bytes("while/body/_12/while/PartitionedCall/squared:0") == 5 * 3 * 4


def test_without_a_function():
    traced = TracedFunction(None, 1)
    assert (traced.is_traced, list(traced.nodes()), traced.num_bytes("x:0")) == (False, [], None)
