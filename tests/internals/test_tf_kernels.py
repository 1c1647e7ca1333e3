"""TensorFlow's registry of kernels."""

from keras_mgpu.internals.tf_kernels import registered_kernels


def test_kernels_by_op():
    """A text has none on a GPU; a product has one for each type, on both."""
    kernels = registered_kernels()
    assert {each.op for each in kernels["MatMul"]} == {"MatMul"}
    assert "CPU" in {each.device_type for each in kernels["MatMul"]}
    assert {each.device_type for each in kernels["AsString"]} == {"CPU"}
    assert "NoSuchOp" not in kernels
