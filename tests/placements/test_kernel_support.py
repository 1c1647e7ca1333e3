"""Which kinds of devices can run an op."""

import tensorflow as tf

from keras_mgpu.placements.kernel_support import can_run, missing_kernel


def node(op, **types):
    made = tf.compat.v1.NodeDef(name="op", op=op)
    for name, dtype in types.items():
        made.attr[name].type = dtype.as_datatype_enum
    return made


def test_an_op_with_kernels_for_some_types():
    assert can_run(node("MatMul", T=tf.float32), "GPU")
    assert missing_kernel(node("MatMul", T=tf.float32), "GPU") == ""
    assert missing_kernel(node("MatMul", T=tf.int32), "GPU") == "no GPU kernel for MatMul of int32"


def test_an_op_without_any_gpu_kernel():
    assert not can_run(node("AsString", T=tf.float32), "GPU")
    assert missing_kernel(node("AsString", T=tf.float32), "GPU") == "no GPU kernel for AsString"


def test_the_cpu_runs_everything_and_calls_run_anywhere():
    assert can_run(node("AsString", T=tf.float32), "CPU")
    assert can_run(node("NoSuchOp"), "GPU")
