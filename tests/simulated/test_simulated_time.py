"""Kernels and copies of simulated GPUs take the time that they are asked to take.

Times are those that the simulator has recorded, which do not depend on what else the machine does.
"""

import itertools
import time

import numpy as np
import pytest
import simgpu
import tensorflow as tf

# Long enough for the host to launch a row of kernels while the first of them runs.
KERNEL = 0.05


@pytest.fixture(autouse=True)
def _no_time_for_others():
    yield
    simgpu.set_cost()


def product_row(device, length=6):
    """A function that runs matrix products one after another, traced and ready."""

    @tf.function
    def run(x):
        with tf.device(device):
            for _ in range(length):
                x = tf.matmul(x, x)
            return x

    with tf.device(device):
        x = tf.eye(8)
    run(x)
    return lambda: run(x)


def on(device):
    return [each for each in simgpu.kernels() if each.device == device]


def test_nothing_takes_time_unless_asked(devices):
    run = product_row(devices[0])
    simgpu.reset()
    run()
    assert len(on(0)) == 6
    assert all(each.begin == each.end for each in on(0))


def test_a_device_takes_as_long_as_its_kernels_together(devices):
    run = product_row(devices[1])
    simgpu.set_cost(launch=KERNEL)
    simgpu.reset()
    run()
    kernels = on(1)
    assert {each.op for each in kernels} == {"MatMul"}
    # Should the host be held up, it is late with a launch, and the device has nothing to do.
    pairs = list(itertools.pairwise(kernels))
    idle = sum(max(0.0, later.enqueued - earlier.end) for earlier, later in pairs)
    assert kernels[-1].end - kernels[0].begin - idle == pytest.approx(6 * KERNEL, rel=0.03)
    assert all(later.begin == max(earlier.end, later.enqueued) for earlier, later in pairs)
    assert simgpu.stats()[1]["kernels"]["MatMul"] == [6, pytest.approx(6 * KERNEL * 1e6)]


def test_devices_work_at_the_same_time(devices):
    run, other = product_row(devices[0]), product_row(devices[1])
    simgpu.set_cost(launch=KERNEL)
    simgpu.reset()
    run(), other()
    assert on(0)[0].begin < on(1)[0].begin < on(0)[-1].end


def test_the_host_waits_for_what_it_reads(devices):
    run = product_row(devices[0])
    simgpu.set_cost(launch=KERNEL, host_latency=KERNEL)
    simgpu.reset()
    begin = time.monotonic()
    value = run()
    np.testing.assert_array_equal(value.numpy(), np.eye(8))
    seconds = time.monotonic() - begin
    [copy] = simgpu.copies()
    assert (copy.source, copy.target, copy.num_bytes) == (0, None, 8 * 8 * 4)
    assert copy.begin >= on(0)[-1].end
    assert seconds >= 7 * KERNEL


def test_a_copy_between_devices_takes_latency_and_bandwidth(devices):
    with tf.device(devices[0]):
        values = tf.zeros((1000,))
    simgpu.set_cost(peer_latency=0.03, peer_bandwidth=1e6)
    simgpu.reset()
    with tf.device(devices[2]):
        tf.identity(values)
    [copy] = simgpu.copies()
    assert (copy.source, copy.target, copy.num_bytes) == (0, 2, 4000)
    assert copy.end - copy.begin == pytest.approx(0.03 + 4000 / 1e6)


def test_what_uses_a_copy_waits_for_it(devices):
    @tf.function
    def run(x):
        with tf.device(devices[0]):
            x = tf.matmul(x, x)
        with tf.device(devices[1]):
            return tf.matmul(x, x)

    with tf.device(devices[0]):
        x = tf.eye(8)
    run(x)
    simgpu.set_cost(launch=KERNEL, peer_latency=KERNEL)
    simgpu.reset()
    run(x)
    [copy], [first], [second] = simgpu.copies(), on(0), on(1)
    assert first.end <= copy.begin < copy.end <= second.begin


def test_copies_share_a_link(devices):
    """In one direction; on their own latencies they do not wait for one another."""
    values = np.zeros((1000,), "float32")
    with tf.device(devices[3]):
        tf.constant(values[:8])
    simgpu.set_cost(host_bandwidth=1e5)
    simgpu.reset()
    with tf.device(devices[3]):
        for _ in range(3):
            tf.constant(values)
    spans = sorted((copy.begin, copy.end) for copy in simgpu.copies())
    assert len(spans) == 3
    assert all(end - begin == pytest.approx(0.04) for begin, end in spans)
    assert all(later[0] >= earlier[1] for earlier, later in itertools.pairwise(spans))


def test_one_device_can_be_slower(devices):
    run, other = product_row(devices[0], 2), product_row(devices[1], 2)
    simgpu.set_cost(launch=0.001)
    simgpu.reset()
    with simgpu.slow_down(1, 3.0):
        run(), other()
    run()
    assert [each.end - each.begin for each in on(0)] == pytest.approx([0.001] * 4)
    assert [each.end - each.begin for each in on(1)] == pytest.approx([0.003] * 2)


def test_time_can_be_stretched(devices):
    run = product_row(devices[0], 1)
    simgpu.set_cost("A100", time_scale=1000)
    simgpu.reset()
    run()
    [kernel] = on(0)
    assert kernel.end - kernel.begin == pytest.approx(1000 * 3e-6, rel=0.1)


def random(*shape, dtype="float32"):
    return tf.cast(tf.random.normal(shape), dtype)


IMAGE, FILTER, GRADIENT = (2, 8, 8, 3), (3, 3, 3, 5), (2, 8, 8, 5)
STRIDES = {"strides": [1, 1, 1, 1], "padding": "SAME"}
CONVOLUTION = 2 * (2 * 8 * 8 * 5) * (3 * 3 * 3)
FLOPS = {
    "product": (lambda: tf.matmul(random(4, 6), random(6, 10)), "MatMul", 2 * 4 * 6 * 10),
    "transposed": (
        lambda: tf.matmul(random(6, 4), random(10, 6), transpose_a=True, transpose_b=True),
        "MatMul",
        2 * 4 * 6 * 10,
    ),
    "batch": (lambda: tf.matmul(random(3, 4, 6), random(3, 6, 10)), "BatchMatMulV2", 1440),
    "attention": (
        lambda: tf.einsum("btnh,bsnh->bnts", random(2, 4, 3, 5), random(2, 6, 3, 5)),
        "Einsum",
        2 * (2 * 4 * 6 * 3 * 5),
    ),
    "dense of many axes": (
        lambda: tf.einsum("...x,xy->...y", random(2, 4, 6), random(6, 10)),
        "Einsum",
        2 * (2 * 4) * 6 * 10,
    ),
    "einsum of one": (lambda: tf.einsum("ab->ba", random(4, 6)), "Einsum", 0),
    "convolution": (
        lambda: tf.raw_ops.Conv2D(input=random(*IMAGE), filter=random(*FILTER), **STRIDES),
        "Conv2D",
        CONVOLUTION,
    ),
    "gradient of its input": (
        lambda: tf.raw_ops.Conv2DBackpropInput(
            input_sizes=IMAGE, filter=random(*FILTER), out_backprop=random(*GRADIENT), **STRIDES
        ),
        "Conv2DBackpropInput",
        CONVOLUTION,
    ),
    "gradient of its filter": (
        lambda: tf.raw_ops.Conv2DBackpropFilter(
            input=random(*IMAGE), filter_sizes=FILTER, out_backprop=random(*GRADIENT), **STRIDES
        ),
        "Conv2DBackpropFilter",
        CONVOLUTION,
    ),
    "depthwise convolution": (
        lambda: tf.raw_ops.DepthwiseConv2dNative(
            input=random(*IMAGE), filter=random(3, 3, 3, 2), **STRIDES
        ),
        "DepthwiseConv2dNative",
        2 * (2 * 8 * 8 * 6) * (3 * 3),
    ),
    "no arithmetic to speak of": (lambda: random(4, 6) + 1.0, "AddV2", 0),
}


def seconds_of(make, op, device):
    """The time of the last kernel of a type."""
    simgpu.reset()
    with tf.device(device):
        make()
    kernel = next(each for each in reversed(simgpu.kernels()) if each.op == op)
    return kernel.end - kernel.begin


@pytest.mark.parametrize("what", FLOPS)
def test_multiplications(devices, what):
    make, op, flops = FLOPS[what]
    simgpu.set_cost(flops=1e6)
    assert seconds_of(make, op, devices[0]) == pytest.approx(flops / 1e6, abs=2e-9)


def updated():
    variable = tf.Variable(random(100))
    variable.assign_add(random(100))


BYTES = {
    "elementwise": (lambda: tf.add(random(100), random(100)), "AddV2", 3 * 400),
    "half": (lambda: random(100, dtype="float16"), "Cast", 400 + 200),
    "rows of a table": (lambda: tf.gather(random(1000, 10), [1, 2]), "GatherV2", 2 * (2 * 10 * 4)),
    "a variable": (updated, "AssignAddVariableOp", 400 + 2 * 400),
}


@pytest.mark.parametrize("what", BYTES)
def test_memory_traffic(devices, what):
    make, op, num_bytes = BYTES[what]
    simgpu.set_cost(memory_bandwidth=1e6)
    assert seconds_of(make, op, devices[0]) == pytest.approx(num_bytes / 1e6, abs=2e-9)


def test_the_slower_of_arithmetic_and_memory_counts(devices):
    def product():
        return tf.matmul(random(10, 10), random(10, 10))

    for flops, expected in ((1e6, 2000 / 1e6), (1e9, 3 * 400 / 1e6)):
        simgpu.set_cost(flops=flops, memory_bandwidth=1e6, launch=0.001)
        assert seconds_of(product, "MatMul", devices[0]) == pytest.approx(0.001 + expected)


def test_half_precision_is_faster(devices):
    def product(dtype):
        x = random(10, 10, dtype=dtype)
        return lambda: tf.matmul(x, x)

    simgpu.set_cost(flops=1e6, half_flops=4e6)
    with tf.device(devices[0]):
        whole, half = product("float32"), product("float16")
    assert seconds_of(whole, "MatMul", devices[0]) == pytest.approx(2000 / 1e6)
    assert seconds_of(half, "MatMul", devices[0]) == pytest.approx(2000 / 4e6)


def test_ops_on_shapes_take_no_time(devices):
    @tf.function
    def shapes(x, size):
        with tf.device(devices[0]):
            return tf.identity(tf.expand_dims(tf.reshape(x, size), 0)), tf.shape(x)

    with tf.device(devices[0]):
        x = random(4, 6)
    shapes(x, [6, 4])
    simgpu.set_cost(launch=KERNEL)
    simgpu.reset()
    shapes(x, [6, 4])
    assert simgpu.kernels() == []
    stats = simgpu.stats()[0]
    assert stats["launches"] == 0
    assert stats["kernels"]["ExpandDims"] == [1, 0.0]
