"""What TensorFlow's profiler writes."""

import glob

import tensorflow as tf

from keras_mgpu.internals import tf_profiler


def test_a_profiled_call_can_be_read(tmp_path):
    function = tf.function(lambda x: tf.linalg.matmul(x, x))
    with tf.profiler.experimental.Profile(str(tmp_path)):
        function(tf.ones((4, 4)))
    [path] = glob.glob(f"{tmp_path}/**/*.xplane.pb", recursive=True)
    with open(path, "rb") as file:
        space = tf_profiler.parse_trace(file.read())
    names = {each.name for plane in space.planes for each in plane.event_metadata.values()}
    assert any("MatMul" in name for name in names)


def test_what_brings_a_batch_is_recognized():
    assert tf_profiler.NEXT_BATCH.match("IteratorGetNextOp::DoCompute")
    assert tf_profiler.NEXT_BATCH.match("GetNextFromShard0")
    assert not tf_profiler.NEXT_BATCH.match("IteratorGetNextOp::DoComputeOther")
