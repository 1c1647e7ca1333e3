"""What is read from a trace, with traces that were made by hand."""

import pytest
from traces import add_call, add_kernels, make_trace

from keras_mgpu.blueprint.schedule import Op
from keras_mgpu.profiling.trace import (
    CallEvent,
    DeviceShares,
    calls_in,
    copies_in,
    device_shares,
    outline_of,
    seconds_for_input,
)


def test_calls_with_their_beginning_and_end():
    trace = make_trace()
    add_call(trace, Op("F", 1, 3), begin=2.0, end=5.0)
    name = "stage_1/forward/micro_batch_3/StatefulPartitionedCall"
    assert list(calls_in(trace)) == [CallEvent(name, 2.0, True), CallEvent(name, 5.0, False)]


def test_events_that_are_not_calls():
    trace = make_trace()
    trace.planes[0].event_metadata[9].name = "something else"
    trace.planes[0].lines[0].events.add(metadata_id=9)
    assert list(calls_in(trace)) == []


def test_shares_of_a_gpus_time():
    """Two kernels that overlap, a sum over replicas, and a pause."""
    trace = make_trace()
    add_kernels(trace, gpu=1, spans=[("matmul", 0, 2), ("conv", 1, 2), ("ncclAllReduce", 5, 1)])
    assert device_shares(trace, 10.0) == {1: DeviceShares(busy=0.4, all_reduce=0.1)}


def test_waiting_for_input():
    trace = make_trace()
    add_kernels(trace, gpu=0, spans=[("matmul", 0, 2)])
    assert seconds_for_input(trace) == 0.0
    host = trace.planes.add(name="/host:CPU")
    host.event_metadata[0].name = "IteratorGetNextOp::DoCompute"
    line = host.lines.add(timestamp_ns=0)
    line.events.add(metadata_id=0, offset_ps=0, duration_ps=3 * 10**12)
    assert seconds_for_input(trace) == pytest.approx(3.0)


def test_copies_of_each_gpu():
    trace = make_trace()
    copies = [("MemcpyH2D", 0, 1), ("matmul", 1, 1), ("MemcpyP2P", 2, 1), ("MemcpyP2P", 3, 1)]
    add_kernels(trace, gpu=0, spans=copies)
    add_kernels(trace, gpu=1, spans=[("matmul", 0, 2)])
    assert copies_in(trace) == {0: {"MemcpyH2D": 1, "MemcpyP2P": 2}, 1: {}}
    assert copies_in(make_trace()) == {}


def test_an_outline_has_the_names_of_facts_and_not_the_facts():
    trace = make_trace()
    add_kernels(trace, gpu=1, spans=[("matmul", 0, 2), ("conv", 1, 2)])
    gpu = trace.planes[1]
    gpu.lines[0].name = "Stream #7"
    gpu.stat_metadata[1].name = "source"
    gpu.stat_metadata[2].name = "/home/somebody/train.py"
    gpu.lines[0].events[0].stats.add(metadata_id=1, ref_value=2)
    assert outline_of(trace) == [
        {"plane": "/device:GPU:1", "lines": [["Stream #7", 2]], "stats": ["source"]}
    ]
