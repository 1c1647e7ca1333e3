"""What TensorFlow's profiler shows of simulated GPUs."""

import glob

import pytest
import simgpu
import tensorflow as tf

from keras_mgpu.internals import tf_profiler
from keras_mgpu.profiling.trace import device_shares

KERNEL, COPY = 0.02, 0.01


@pytest.fixture
def trace(devices, tmp_path):
    """Two products on a device, one on another, and the result read; with the recorded times."""

    @tf.function
    def run(x):
        with tf.device(devices[0]):
            x = tf.matmul(tf.matmul(x, x, name="first"), x, name="second")
        with tf.device(devices[1]):
            return tf.matmul(x, x, name="third")

    with tf.device(devices[0]):
        x = tf.eye(8)
    run(x)
    simgpu.set_cost(launch=KERNEL, peer_latency=COPY, host_latency=COPY)
    simgpu.reset()
    tf.profiler.experimental.start(str(tmp_path))
    run(x).numpy()
    tf.profiler.experimental.stop()
    simgpu.set_cost()
    [path] = glob.glob(f"{tmp_path}/**/*.xplane.pb", recursive=True)
    with open(path, "rb") as file:
        return tf_profiler.parse_trace(file.read())


def events(trace, plane_name):
    """For each line of a plane, its events: name, begin and seconds, and texts by name."""
    [plane] = [each for each in trace.planes if each.name == plane_name]
    names, texts = plane.event_metadata, plane.stat_metadata
    return {
        line.name: [
            (
                names[event.metadata_id].name,
                line.timestamp_ns * 1e-9 + event.offset_ps * 1e-12,
                event.duration_ps * 1e-12,
                {texts[stat.metadata_id].name: stat.str_value for stat in event.stats},
            )
            for event in line.events
        ]
        for line in plane.lines
    }


def test_kernels_and_copies_of_each_device(trace):
    first, second = events(trace, "/device:GPU:0"), events(trace, "/device:GPU:1")
    assert list(first) == ["Stream #1(Compute)", "Stream #4(MemcpyP2P)"]
    assert list(second) == ["Stream #1(Compute)", "Stream #3(MemcpyD2H)"]
    kernels = first["Stream #1(Compute)"] + second["Stream #1(Compute)"]
    ops = [texts["tf_op"] for *_, texts in kernels]
    assert ops == ["first:MatMul", "second:MatMul", "third:MatMul"]
    assert [seconds for _, _, seconds, _ in kernels] == pytest.approx([KERNEL] * 3)
    copies = first["Stream #4(MemcpyP2P)"] + second["Stream #3(MemcpyD2H)"]
    assert [seconds for _, _, seconds, _ in copies] == pytest.approx([COPY] * 2)
    assert all("size:256 " in texts["memcpy_details"] for *_, texts in copies)


def test_times_are_those_of_the_simulator(trace):
    """The trace begins at another time than the clock; between kernels they agree."""
    planes = [events(trace, f"/device:GPU:{index}") for index in range(2)]
    begins = [begin for plane in planes for _, begin, *_ in plane["Stream #1(Compute)"]]
    recorded = [each.begin for each in simgpu.kernels()]
    assert [begin - begins[0] for begin in begins] == pytest.approx(
        [begin - recorded[0] for begin in recorded], abs=1e-6
    )


def test_host_and_devices_have_one_clock(trace):
    """No kernel begins before the host has begun to call the function."""
    calls = [event for line in events(trace, "/host:CPU").values() for event in line]
    kernels = events(trace, "/device:GPU:0")["Stream #1(Compute)"]
    begin, end = min(call[1] for call in calls), max(call[1] + call[2] for call in calls)
    assert begin <= kernels[0][1] < kernels[-1][1] <= end


def test_the_package_reads_how_busy_a_device_was(trace):
    """Three kernels' time of a step of six: copies count as work as well."""
    shares = device_shares(trace, 6 * KERNEL)
    assert shares[0].busy == pytest.approx((2 * KERNEL + COPY) / (6 * KERNEL), rel=0.01)
    assert shares[1].busy == pytest.approx((KERNEL + COPY) / (6 * KERNEL), rel=0.01)
