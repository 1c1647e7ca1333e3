"""A measured timeline has the form of a predicted one, and shows what has run."""

import itertools

import keras
import numpy as np
import pytest
from profiled_split import data, make_split
from traces import add_call, make_trace

import keras_mgpu as km
from keras_mgpu.blueprint.named_schedules import one_f_one_b
from keras_mgpu.blueprint.schedule import Op
from keras_mgpu.profiling.measured_timeline import MeasuredStep, MissedOpsError
from keras_mgpu.profiling.trace_recorder import TraceRecorder


@pytest.mark.parametrize(
    ("schedule", "options"),
    [
        ("1f1b", {}),
        ("gpipe", {"recompute": True}),
        ("zero_bubble", {}),
        ("interleaved", {"stages_per_device": 2}),
    ],
)
def test_every_op_once_in_the_order_of_the_schedule(devices, monkeypatch, schedule, options):
    by_the_hosts_clock = []
    stop = TraceRecorder.stop

    def recorded_stop(self):
        by_the_hosts_clock.append(stop(self))
        return by_the_hosts_clock[-1]

    monkeypatch.setattr(TraceRecorder, "stop", recorded_stop)
    split = make_split(devices, schedule, **options)
    measured = split.profile(*data())
    for lane, ops in enumerate(split.schedule.lanes):
        spans = [span for span in measured.timeline.spans if span.lane == lane]
        assert [span.op for span in spans] == list(ops)
        for one, other in itertools.pairwise(spans):
            assert one.end <= other.start  # Intervals of one device do not overlap.
    ends = {span.op: span.end for span in measured.timeline.spans}
    for span in measured.timeline.spans:
        for need in split.schedule.needs(span.op):
            assert ends[need] <= span.start
    assert 0 <= measured.timeline.bubble < 1
    assert measured.critical_stage in range(split.schedule.num_stages)
    assert measured.predicted.makespan > 0
    # The profiler has its own clock, but ops must lie within the step by the host's clock.
    for lane, (busy, idle) in enumerate(zip(measured.busy, measured.idle)):
        spans = [span for span in measured.timeline.spans if span.lane == lane]
        assert busy * measured.seconds == pytest.approx(sum(s.end - s.start for s in spans))
        assert busy > 0
        assert (busy + idle) * measured.seconds == pytest.approx(by_the_hosts_clock[-1], rel=0.02)
    assert km.Timeline.from_json(measured.timeline.to_json()) == measured.timeline


def test_a_step_with_missing_ops_is_not_shown_as_complete(devices, missing_ops):
    split = make_split(devices)
    missing_ops.num_traces = 2
    assert len(split.profile(*data()).timeline.spans) == 16
    missing_ops.num_traces = 1000
    with pytest.raises(RuntimeError, match="missed 1 of 16 ops"):
        split.profile(*data())


def test_profiling_changes_nothing(devices):
    split = make_split(devices)
    x, y = data()
    split.fit(x, y, batch_size=256, verbose=0)
    in_metrics = [variable for metric in split.metrics for variable in metric.variables]
    variables = [*split.model.variables, *split.optimizer.variables, *in_metrics]
    before = [variable.numpy() for variable in variables]
    split.profile(x, y)
    for old, variable in zip(before, variables):
        np.testing.assert_array_equal(old, variable.numpy())


def test_profiling_draws_no_random_numbers(devices):
    """Not even for a layer that uses Keras's global seed."""

    class Noise(keras.layers.Layer):
        def call(self, x):
            return x + keras.random.normal(keras.ops.shape(x))

    losses = []
    for is_profiled in (False, True):
        keras.backend.clear_session()  # Before Keras 3.13 a new seed leaves the global one alone.
        keras.utils.set_random_seed(1)
        stack = [keras.layers.Dense(8), Noise(), keras.layers.Dense(8), keras.layers.Dense(2)]
        model = keras.Sequential([keras.Input((16,)), *stack])
        split = km.PipelineSplit(model, devices[:2], micro_batches=2)
        split.compile("sgd", "mse")
        if is_profiled:
            split.profile(*data(16))
        history = split.fit(*data(32), batch_size=16, shuffle=False, verbose=0)
        losses.append(history.history["loss"])
    assert losses[0] == losses[1]


@pytest.mark.parametrize("how", [{"run_eagerly": True}, {}])
def test_a_step_in_which_stages_cannot_be_traced(devices, how):
    split = (
        make_split(devices)
        if how
        else km.PipelineSplit(make_split(devices).model, devices[:2], micro_batches=1)
    )
    split.compile("sgd", "mse", **how)
    with pytest.raises(RuntimeError, match="only with several micro-batches and without"):
        split.profile(*data())


# From traces that were made by hand.


@pytest.fixture
def schedule():
    """F0 F1 B0 B1 on the first device, F0 B0 F1 B1 on the second."""
    return one_f_one_b(2, 2)


def measure(schedule, lengths, seconds=0.0):
    """Ops one after the other in each lane, with a second between the two lanes."""
    trace = make_trace()
    for stage, lane in enumerate(schedule.lanes):
        time = 100.0 + 2 * stage
        for op in lane:
            add_call(trace, op, begin=time, end=time + lengths[op.kind])
            time += lengths[op.kind] + 1
    return MeasuredStep.from_trace(trace, schedule, seconds)


def test_times_count_from_the_first_op(schedule):
    measured = measure(schedule, {"F": 1, "B": 2})
    first, *_, last = measured.timeline.spans
    assert (first.start, first.end) == (0.0, 1.0)
    assert last.end == measured.timeline.makespan == 11.0
    assert measured.costs.forward == (1.0, 1.0)
    assert measured.costs.backward == (2.0, 2.0)


def test_shares_are_of_the_whole_step(schedule):
    measured = measure(schedule, {"F": 1, "B": 2}, seconds=24.0)
    assert measured.busy == pytest.approx((0.25, 0.25))
    assert measured.idle == pytest.approx((0.75, 0.75))
    assert measured.scalars()["pipeline/step_seconds"] == 24.0


def test_a_transfer_is_the_shortest_wait(schedule):
    assert measure(schedule, {"F": 1, "B": 2}).transfers[0, 1] == pytest.approx(1.0)


def test_a_trace_without_ops_and_one_with_some(schedule):
    trace = make_trace()
    assert MeasuredStep.from_trace(trace, schedule) is None
    add_call(trace, Op("F", 0, 0), 0.0, 1.0, call="loss/mul")
    assert MeasuredStep.from_trace(trace, schedule) is None
    add_call(trace, Op("F", 0, 0), 0.0, 1.0)
    with pytest.raises(MissedOpsError, match="missed 7 of 8 ops"):
        MeasuredStep.from_trace(trace, schedule)
