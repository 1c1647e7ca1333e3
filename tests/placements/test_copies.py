"""What is copied inside functions that remain calls, and how often."""

from collections import Counter

import tensorflow as tf

from keras_mgpu.placements.copies import Copy, copies_of
from keras_mgpu.placements.executed_graph import read_graph
from keras_mgpu.placements.traced_function import TracedFunction

GPU = "/job:localhost/replica:0/task:0/device:GPU:0"
VECTORS = tf.TensorSpec([None, 8])
COUNTS = tf.TensorSpec([None], tf.int32)


def copies(function, *specs, device=GPU, num_calls=1, num_samples=4, **attributes):
    """The copies in a step that calls a function on a device so many times."""
    concrete = tf.function(function).get_concrete_function(*specs)
    found = tf.compat.v1.RunMetadata.FunctionGraphs()
    part = found.partition_graphs.add()
    part.library.CopyFrom(concrete.graph.as_graph_def().library)
    part.library.function.append(concrete.function_def)
    for index in range(num_calls):
        call = part.node.add(name=f"call_{index}", op="StatefulPartitionedCall", device=device)
        call.attr["f"].func.name = concrete.function_def.signature.name
        for name, value in attributes.items():
            call.attr[name].b = value
    return list(copies_of(read_graph(found), TracedFunction(None, num_samples)))


def down(num_bytes):
    return Copy("GPU:0", "CPU:0", num_bytes)


def up(num_bytes):
    return Copy("CPU:0", "GPU:0", num_bytes)


def as_text(x):
    return x + tf.strings.to_number(tf.strings.as_string(x))


def test_an_op_without_gpu_kernel_takes_its_input_to_the_host_and_back():
    assert copies(as_text, VECTORS) == [down(4 * 8 * 4), up(4 * 8 * 4)]


def test_every_call_counts():
    assert Counter(copies(as_text, VECTORS, num_calls=3)) == {down(128): 3, up(128): 3}


def test_ops_on_one_device_copy_nothing():
    assert copies(lambda x: tf.nn.relu(tf.matmul(x, tf.ones([8, 8]))), VECTORS) == []
    assert copies(as_text, VECTORS, device=GPU.replace("GPU", "CPU")) == []


def test_shapes_are_in_the_memory_of_the_host_from_beginning_to_end():
    def flattened(x):
        return tf.reshape(x, [tf.shape(x)[0] * 8]), tf.shape(x) + 1

    assert copies(flattened, VECTORS) == []


def test_integers_that_a_function_takes_or_returns_are_in_the_memory_of_the_host():
    assert copies(lambda n: tf.cast(n, "float32"), COUNTS) == [up(4 * 4)]
    assert copies(lambda x: tf.cast(x, "int32"), VECTORS) == [down(4 * 8 * 4)]
    assert copies(lambda n: tf.cast(n, "float32"), tf.TensorSpec([None], tf.int64)) == []


def test_what_several_ops_read_is_copied_once():
    def twice(x):
        return tf.strings.as_string(x), tf.strings.as_string(x, precision=2)

    assert copies(twice, VECTORS) == [down(4 * 8 * 4)]


def test_functions_inside_functions():
    @tf.function
    def inner(x):
        return as_text(as_text(x))

    assert Counter(copies(lambda x: inner(x) + 1, VECTORS)) == {down(128): 2, up(128): 2}


def test_xla_compiles_for_the_device_alone():
    compiled = copies(lambda n: tf.cast(n, "float32"), COUNTS, _XlaMustCompile=True)
    assert compiled == []


def test_shapes_that_depend_on_the_number_of_samples():
    def joined(x):
        rows = tf.reshape(x, [tf.shape(x)[0] * 2, 4])
        return as_text(tf.concat([rows, rows], axis=1))

    assert copies(joined, VECTORS, num_samples=3) == [down(6 * 8 * 4), up(6 * 8 * 4)]


def test_shapes_that_are_not_known():
    unknown = tf.TensorSpec([None, None])
    assert copies(lambda x: tf.strings.as_string(x), unknown) == [down(None)]


def test_an_argument_whose_first_dimension_is_not_the_samples():
    def with_table(x, table):
        return as_text(x), tf.matmul(tf.ones([2, 7]), table)

    table = tf.TensorSpec([None, 3])
    assert copies(with_table, VECTORS, table) == [down(128), up(128)]


def test_a_function_with_an_op_that_is_not_known_here_is_left_out():
    """Such as one of another program. Training goes on."""
    found = tf.compat.v1.RunMetadata.FunctionGraphs()
    part = found.partition_graphs.add()
    body = part.library.function.add()
    body.signature.name = "body"
    body.node_def.add(name="x", op="OpOfAnotherProgram")
    part.node.add(name="call", op="PartitionedCall", device=GPU).attr["f"].func.name = "body"
    assert list(copies_of(read_graph(found), TracedFunction(None, 1))) == []


def test_ops_that_ask_for_another_device(devices):
    def elsewhere(x):
        with tf.device(devices[1]):
            return tf.nn.relu(x)

    here, there = (device.strip("/") for device in devices[:2])
    found = copies(elsewhere, VECTORS, device=devices[0])
    assert found == [Copy(here, there, 128), Copy(there, here, 128)]
    assert copies(elsewhere, VECTORS, device=devices[1]) == []
