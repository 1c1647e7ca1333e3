"""When a save is due."""

import itertools

import pytest

from keras_mgpu.checkpoints.save_timing import Passed, make_timing


def run(timing, num_batches, seconds_a_batch, stall=0.5, epoch=10):
    """The batches after which a save was due, with a save that takes `stall` seconds."""
    due, batches, seconds, last_stall = [], 0, 0.0, None
    for batch in range(1, num_batches + 1):
        batches += 1
        seconds += seconds_a_batch
        if timing.is_due(Passed(batches, seconds, last_stall, batch % epoch == 0)):
            due.append(batch)
            batches, seconds, last_stall = 0, 0.0, stall
    return due


def test_epochs():
    assert run(make_timing("epoch"), 35, 1.0) == [10, 20, 30]


def test_batches():
    assert run(make_timing(4), 14, 1.0) == [4, 8, 12]


def test_seconds():
    assert run(make_timing("epoch", seconds=2.5), 10, 1.0) == [3, 6, 9]


def test_overhead_keeps_its_share():
    due = run(make_timing("epoch", overhead=0.01), 1000, 1.0, stall=0.5)
    assert due[0] == 1  # That one shows what a save costs.
    stalls = 0.5 * len(due)
    assert stalls / 1000 <= 0.0125  # The share, and the first one.
    assert due[1] - due[0] == 50  # 0.5 s are 1 % of 50 s.


def test_seconds_bound_the_lost_work_under_an_overhead():
    due = run(make_timing("epoch", seconds=20, overhead=0.01), 100, 1.0, stall=0.5)
    assert max(b - a for a, b in itertools.pairwise(due)) == 20


@pytest.mark.parametrize("save_freq", ["batch", 0, -1, 1.5, None, True])
def test_bad_save_freq(save_freq):
    with pytest.raises(ValueError, match="`save_freq` must be"):
        make_timing(save_freq)


@pytest.mark.parametrize("name", ["seconds", "overhead"])
@pytest.mark.parametrize("value", [0, -1])
def test_bad_times(name, value):
    with pytest.raises(ValueError, match=f"`{name}` must be"):
        make_timing("epoch", **{name: value})


def test_batches_and_time_together():
    with pytest.raises(ValueError, match="not both"):
        make_timing(10, seconds=3)
    with pytest.raises(ValueError, match="between 0 and 1"):
        make_timing("epoch", overhead=1.0)
