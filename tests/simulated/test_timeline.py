"""A measured timeline on GPUs tells when kernels ran, not when they were launched."""

import itertools

import keras
import numpy as np
import pytest
import simgpu
from keras import layers

import keras_mgpu as km

KERNEL = 0.002  # Far longer than launching one takes.
X, Y = np.ones((16, 8), "float32"), np.zeros((16, 8), "float32")


@pytest.fixture(params=["1f1b", "zero_bubble"])
def split(request, devices):
    model = keras.Sequential([keras.Input((8,)), *(layers.Dense(8) for _ in range(4))])
    split = km.PipelineSplit(model, devices[:2], micro_batches=4, schedule=request.param)
    split.compile("sgd", "mse")
    split.train_on_batch(X, Y)
    simgpu.set_cost(launch=KERNEL)
    simgpu.reset()
    yield split
    simgpu.set_cost()


def test_ops_last_as_long_as_their_kernels(split):
    measured = split.profile(X, Y)
    kernels = [each for each in simgpu.kernels() if each.name.startswith("stage_")]
    for stage in range(2):
        for kind, word in (("F", "forward"), ("B", "backward"), ("W", "weights")):
            own = [k for k in kernels if k.name.startswith(f"stage_{stage}_{word}/")]
            spans = [s for s in measured.timeline.spans if s.op[:2] == (kind, stage)]
            # An op launches each of its kernels once.
            expected = sum({k.name: k.end - k.begin for k in own}.values())
            for span in spans if own else ():  # The first stage may have nothing to give back.
                assert expected >= 1.5 * KERNEL
                assert span.end - span.start >= 0.99 * expected


def test_ops_of_a_device_follow_one_another_and_what_they_need(split):
    measured = split.profile(X, Y)
    for lane, ops in enumerate(split.schedule.lanes):
        spans = sorted(
            (s for s in measured.timeline.spans if s.lane == lane), key=lambda s: s.start
        )
        assert [span.op for span in spans] == list(ops)
        for one, other in itertools.pairwise(spans):
            assert one.end <= other.start + 1e-6
    ends = {span.op: span.end for span in measured.timeline.spans}
    for span in measured.timeline.spans:
        for need in split.schedule.needs(span.op):
            assert ends[need] <= span.start + 1e-6
