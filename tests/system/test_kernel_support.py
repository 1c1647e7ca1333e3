"""Which kinds of devices can run an op."""

import pytest
import tensorflow as tf

from keras_mgpu.system.kernel_support import can_run, missing_kernel


def node(op, **attributes):
    made = tf.compat.v1.NodeDef(name="op", op=op)
    for name, value in attributes.items():
        if isinstance(value, tf.DType):
            made.attr[name].type = value.as_datatype_enum
        else:
            made.attr[name].s = value.encode()
    return made


def test_an_op_with_kernels_for_some_types():
    assert can_run(node("MatMul", T=tf.float32), "GPU")
    assert missing_kernel(node("MatMul", T=tf.float32), "GPU") == ""
    assert missing_kernel(node("MatMul", T=tf.int32), "GPU") == "no GPU kernel for MatMul of int32"


def test_an_op_without_any_gpu_kernel():
    assert not can_run(node("AsString", T=tf.float32), "GPU")
    assert missing_kernel(node("AsString", T=tf.float32), "GPU") == "no GPU kernel for AsString"


@pytest.mark.parametrize(
    "made",
    [
        node("ReadVariableOp", dtype=tf.float32),
        node("BroadcastGradientArgs", T=tf.int32),
        node("InvertPermutation", T=tf.int32),
        node("VarHandleOp"),
    ],
    ids=lambda made: made.op,
)
def test_an_op_with_one_kernel_for_all_kinds_of_devices(made):
    assert can_run(made, "GPU")
    assert missing_kernel(made, "GPU") == ""


def test_an_op_with_gpu_kernels_for_some_types_and_common_ones_for_others():
    assert can_run(node("Range", Tidx=tf.float32), "GPU")
    assert can_run(node("Range", Tidx=tf.int32), "GPU")
    assert can_run(node("Unique", T=tf.int64, out_idx=tf.int32), "GPU")
    assert can_run(node("Unique", T=tf.string, out_idx=tf.int32), "GPU")
    complex_range = node("Range", Tidx=tf.complex64)
    assert missing_kernel(complex_range, "GPU") == "no GPU kernel for Range of complex64"


def test_an_op_with_kernels_for_some_settings():
    types = {"Tindices": tf.int32, "Tparams": tf.float32}
    assert can_run(node("GatherNd", bad_indices_policy="IGNORE", **types), "GPU")
    strict = node("GatherNd", bad_indices_policy="ERROR", **types)
    assert missing_kernel(strict, "GPU") == "no GPU kernel for GatherNd of int32, float32, ERROR"


def test_the_cpu_runs_everything_and_calls_run_anywhere():
    assert can_run(node("AsString", T=tf.float32), "CPU")
    assert can_run(node("NoSuchOp"), "GPU")
