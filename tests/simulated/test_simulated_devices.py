"""The simulated GPUs themselves: what TensorFlow sees of them, and what they count."""

import numpy as np
import pytest
import simgpu
import tensorflow as tf


def test_tensorflow_sees_gpus(devices):
    assert devices == ["/GPU:0", "/GPU:1", "/GPU:2", "/GPU:3"]
    assert len(tf.config.list_logical_devices("GPU")) == 4
    with tf.device(devices[2]):
        product = tf.random.normal((3, 4)) @ tf.random.normal((4, 5))
    assert product.device.endswith("GPU:2")


def test_an_op_without_a_gpu_kernel_runs_on_the_host(devices):
    """As with real GPUs: the list of kernels is theirs."""
    with tf.device(devices[0]):
        assert tf.strings.as_string(tf.constant(1.5)).device.endswith("CPU:0")


def test_copies_are_counted(devices):
    values = np.arange(1000, dtype="float32")
    simgpu.reset()
    with tf.device(devices[0]):
        there = tf.constant(values)
    with tf.device(devices[1]):
        moved = tf.identity(there)
    np.testing.assert_array_equal(moved.numpy(), values)
    first, second = simgpu.stats()[:2]
    assert first["h2d"]["sizes"] == {4000: 1}
    assert first["d2d"][1]["sizes"] == {4000: 1}
    assert second["d2h"]["sizes"] == {4000: 1}
    assert (first["d2h"]["n"], second["h2d"]["n"]) == (0, 0)


def test_kernels_are_counted(devices):
    with tf.device(devices[3]):
        x = tf.ones((8, 8))
        simgpu.reset()
        for _ in range(3):
            x = tf.matmul(x, x)
    counts = [device["kernels"].get("MatMul", [0])[0] for device in simgpu.stats()]
    assert counts == [0, 0, 0, 3]
    assert "GPU:3 kernels 3 " in simgpu.brief()


def test_memory_can_run_out(devices):
    """More than TensorFlow has reserved by now: that it keeps, and fills first."""
    mib = 1 << 20
    reserved = simgpu.stats()[1]["reserved"]
    with simgpu.memory_limit(1, reserved + 64 * mib):
        with tf.device(devices[1]), pytest.raises(tf.errors.ResourceExhaustedError, match="GPU:1"):
            tf.zeros((reserved + 100 * mib,), tf.uint8)
        with tf.device(devices[2]):
            tf.zeros((100 * mib,), tf.uint8)
    assert simgpu.stats()[1]["limit"] == 2048 * mib
    assert simgpu.stats()[1]["failed"] > 0
    with tf.device(devices[1]):
        tf.zeros((100 * mib,), tf.uint8)


def test_every_kernel_finds_its_inputs_where_they_belong(devices):
    """In the memory of its device, or in the host's where the kernel wants that."""
    simgpu.reset()
    with tf.device(devices[1]):
        x = tf.Variable(tf.random.normal((6, 4)))
        parts = tf.split(x, [2, 4])
        padded = tf.pad(tf.reshape(parts[1], tf.shape(tf.transpose(parts[1]))), [[1, 1], [0, 0]])
        x.assign_add(padded + tf.reduce_sum(tf.gather(x, [0, 3]), axis=0))
    assert [device["misplaced"] for device in simgpu.stats()] == [{}] * 4
