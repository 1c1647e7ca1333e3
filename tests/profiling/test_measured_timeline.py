"""A measured timeline has the form of a predicted one, and is true."""

import itertools

import keras
import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorflow.tsl.profiler.protobuf import xplane_pb2

import keras_mgpu as km
from keras_mgpu.profiling import measured_timeline
from keras_mgpu.profiling.picture import draw
from keras_mgpu.profiling.profile import Profile, device_shares


def make_split(devices, schedule="1f1b", **options):
    hidden = [keras.layers.Dense(256, activation="relu") for _ in range(4)]
    model = keras.Sequential([keras.Input((16,)), *hidden, keras.layers.Dense(2)])
    split = km.PipelineSplit(model, devices[:2], micro_batches=4, schedule=schedule, **options)
    split.compile("adam", "mse")
    return split


def data(num_samples=256):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((num_samples, 16)).astype("float32")
    return x, x[:, :2]


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
    stop = Profile.stop

    def noted_stop(self):
        by_the_hosts_clock.append(stop(self))
        return by_the_hosts_clock[-1]

    monkeypatch.setattr(Profile, "stop", noted_stop)
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
    # The profiler has a clock of its own, and ops must lie within the step by the host's.
    for lane, (busy, idle) in enumerate(zip(measured.busy, measured.idle)):
        spans = [span for span in measured.timeline.spans if span.lane == lane]
        assert busy * measured.seconds == pytest.approx(sum(s.end - s.start for s in spans))
        assert busy > 0
        assert (busy + idle) * measured.seconds == pytest.approx(by_the_hosts_clock[-1], rel=0.02)
    assert km.Timeline.from_json(measured.timeline.to_json()) == measured.timeline


@pytest.fixture
def overlooking(monkeypatch):
    """The profiler misses the end of an op in so many traces, as it does once in a while."""
    left = [0]
    see_all = measured_timeline.calls_in

    def see(space):
        left[0] -= 1
        for name, moment, is_begin in see_all(space):
            if left[0] < 0 or is_begin or "stage_1/backward/micro_batch_2" not in name:
                yield name, moment, is_begin

    monkeypatch.setattr(measured_timeline, "calls_in", see)
    return left


def test_a_step_of_which_the_profiler_missed_a_part_is_not_shown_as_whole(devices, overlooking):
    split = make_split(devices)
    overlooking[0] = 2
    assert len(split.profile(*data()).timeline.spans) == 16
    overlooking[0] = 1000
    with pytest.raises(RuntimeError, match="missed 1 of 16 ops"):
        split.profile(*data())


def test_the_callback_takes_a_later_step_instead(devices, tmp_path, overlooking):
    overlooking[0] = 1
    x, y = data()
    callback = km.GPUMetrics(tmp_path, interval=0.01)
    split = make_split(devices)
    split.fit(x, y, batch_size=8, epochs=2, verbose=0, callbacks=[callback])
    events = EventAccumulator(str(tmp_path / "pipeline")).Reload()
    first, second = [event.step for event in events.Scalars("pipeline/bubble")]
    assert 2 < first <= 32 < second


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
    """Of a layer that takes them from where all of Keras does."""

    class Noise(keras.layers.Layer):
        def call(self, x):
            return x + keras.random.normal(keras.ops.shape(x))

    losses = []
    for is_profiled in (False, True):
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


def test_the_callback_logs_it_once_an_epoch(devices, tmp_path):
    split = make_split(devices)
    x, y = data()
    callback = km.GPUMetrics(tmp_path, interval=0.05)
    split.fit(x, y, batch_size=64, epochs=3, verbose=0, callbacks=[callback])
    events = EventAccumulator(str(tmp_path / "pipeline"), size_guidance={"images": 0}).Reload()
    assert [event.step for event in events.Scalars("pipeline/bubble")] == [2, 5, 9]
    for tag in ("pipeline/bubble_predicted", "pipeline/critical_stage", "pipeline/step_seconds"):
        assert len(events.Scalars(tag)) == 3
    assert events.Scalars("pipeline/transfer_0_to_1_ms")[0].value >= 0
    images = events.Images("pipeline/timeline")
    assert len(images) == 3
    assert images[0].encoded_image_string.startswith(b"\x89PNG")
    for run in ("cpu_0", "cpu_1"):
        found = EventAccumulator(str(tmp_path / run)).Reload().Scalars("pipeline/busy")
        assert all(0 < event.value <= 1 for event in found)


@pytest.mark.parametrize("how", [{"run_eagerly": True}, {}])
def test_a_step_in_which_stages_cannot_be_seen(devices, how):
    split = (
        make_split(devices)
        if how
        else km.PipelineSplit(make_split(devices).model, devices[:2], micro_batches=1)
    )
    split.compile("sgd", "mse", **how)
    with pytest.raises(
        RuntimeError, match="only with several micro-batches, and not with run_eagerly"
    ):
        split.profile(*data())


def test_every_so_many_steps(devices, tmp_path):
    x, y = data()
    callback = km.GPUMetrics(tmp_path, interval=0.05, timeline_every=3)
    make_split(devices).fit(x, y, batch_size=32, verbose=0, callbacks=[callback])
    events = EventAccumulator(str(tmp_path / "pipeline")).Reload()
    assert [event.step for event in events.Scalars("pipeline/bubble")] == [2, 5, 8]


def test_the_picture_shows_each_lane(devices):
    timeline = km.replay(make_split(devices).schedule)
    picture = draw([("predicted", timeline)])
    colours = {colour for _, colour in picture.getcolors(maxcolors=10_000)}
    assert {(86, 156, 214), (106, 190, 120)} <= colours


def test_shares_of_a_gpus_time():
    """Two kernels that overlap, a sum over replicas, and a pause."""
    space = xplane_pb2.XSpace()
    plane = space.planes.add(name="/device:GPU:1")
    for number, name in enumerate(["matmul", "ncclAllReduce"]):
        plane.event_metadata[number].name = name
    line = plane.lines.add(timestamp_ns=0)
    second = 10**12
    for number, begin, length in [(0, 0, 2), (0, 1, 2), (1, 5, 1)]:
        line.events.add(metadata_id=number, offset_ps=begin * second, duration_ps=length * second)
    (shares,) = device_shares(space, 10.0).values()
    assert (shares.busy, shares.all_reduce) == (0.4, 0.1)
