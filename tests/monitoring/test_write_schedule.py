import numpy as np
import pytest

from keras_mgpu.monitoring.write_schedule import WriteSchedule, is_count


def due_steps(update_freq, num_steps=1, interval=1.0, seconds=1.0):
    schedule, found = WriteSchedule(update_freq, interval), []
    schedule.start(0, 0.0)
    for step in range(num_steps, 13, num_steps):
        now = step * seconds
        if schedule.is_due(step, num_steps, now):
            assert schedule.written(step, now)
            found.append(step)
    return found


def test_every_batch_and_every_few_batches():
    assert due_steps("batch") == list(range(1, 13))
    assert due_steps(5) == [5, 10]
    assert due_steps("epoch") == []  # The end of an epoch is written anyway.


def test_calls_of_several_batches_that_pass_a_multiple():
    assert due_steps(5, num_steps=3) == [6, 12]
    assert due_steps(2, num_steps=4) == [4, 8, 12]


def test_at_most_one_per_interval():
    assert due_steps("batch", interval=4.0) == [4, 8, 12]


def test_a_step_is_written_once():
    schedule = WriteSchedule("batch", 1.0)
    schedule.start(7, 0.0)
    assert not schedule.written(7, 1.0)
    assert schedule.written(8, 2.0)
    assert not schedule.written(8, 3.0)


@pytest.mark.parametrize("interval", [0, -1, float("nan"), float("inf"), "1", True])
def test_bad_intervals(interval):
    with pytest.raises(ValueError, match=r"`interval` must be a positive number.*Received"):
        WriteSchedule("batch", interval)


@pytest.mark.parametrize("update_freq", [0, "step", 1.5, True, np.array([1, 2])])
def test_bad_frequencies(update_freq):
    with pytest.raises(ValueError, match=r"`update_freq` must be .* a positive integer"):
        WriteSchedule(update_freq, 1.0)


def test_counts():
    assert is_count(1)
    assert is_count(np.int64(2))
    assert not any(map(is_count, (0, True, 1.0, "1", None)))
