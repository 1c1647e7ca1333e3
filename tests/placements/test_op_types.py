"""Ops keep their type when TensorFlow's optimizer rewrites them, on any CPU."""

import pytest
import tensorflow as tf

from keras_mgpu.placements.op_types import original_type


def node(op, *fused_ops):
    made = tf.compat.v1.NodeDef(name="dense_1/op", op=op)
    if fused_ops:
        made.attr["fused_ops"].list.s.extend(name.encode() for name in fused_ops)
    return made


@pytest.mark.parametrize(
    ("executed", "traced", "expected"),
    [
        (node("MatMul"), node("MatMul"), "MatMul"),
        (node("_MklMatMul"), node("MatMul"), "MatMul"),
        (node("_MklNativeConv2DBackpropFilterWithBias"), node("Conv2DBackpropFilter"),
         "Conv2DBackpropFilter"),
        (node("Mul"), node("RealDiv"), "RealDiv"),
        (node("_FusedMatMul", "BiasAdd"), node("BiasAdd"), "MatMul+BiasAdd"),
        (node("_MklNativeFusedConv2D", "BiasAdd", "Relu"), node("Relu"), "Conv2D+BiasAdd+Relu"),
        (node("_FusedBatchNormEx"), node("Relu"), "_FusedBatchNormEx"),
        (node("_UnaryOpsComposition"), node("_UnaryOpsComposition"), "_UnaryOpsComposition"),
    ],
    ids=lambda each: each if isinstance(each, str) else each.op,
)  # fmt: skip
def test_original_type(executed, traced, expected):
    assert original_type(executed, traced) == expected
