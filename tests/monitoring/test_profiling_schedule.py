import pytest

from keras_mgpu.monitoring.profiling_schedule import ProfilingSchedule


def profiled(schedule, epochs, fails=()):
    """The steps that are profiled, in epochs of such numbers of steps."""
    step, found = 0, []
    for number, length in enumerate(epochs):
        schedule.begin_epoch(step)
        if number == 0:
            schedule.start(step)
        for _ in range(length):
            is_due = schedule.is_due(step)
            step += 1
            if is_due:
                schedule.profiled(step)
                found.append(step)
            if is_due and step in fails:
                schedule.try_again()
    return found


def test_one_step_per_epoch_but_never_the_first():
    assert profiled(ProfilingSchedule("epoch"), [4, 4, 4]) == [2, 5, 9]


def test_one_step_in_several():
    assert profiled(ProfilingSchedule(3), [8]) == [2, 5, 8]


def test_never():
    schedule = ProfilingSchedule(None)
    assert not schedule.is_on
    assert profiled(schedule, [4, 4]) == []


def test_a_profile_that_is_not_complete_is_tried_again():
    assert profiled(ProfilingSchedule("epoch"), [6, 6], fails=(2, 3)) == [2, 3, 4, 7]


def test_steps_that_the_users_profiler_needs():
    schedule = ProfilingSchedule(100)
    schedule.start(step=10, num_reserved=4)
    assert [schedule.is_due(step) for step in (14, 15)] == [False, True]


def test_a_run_that_cannot_be_profiled():
    schedule = ProfilingSchedule("epoch")
    schedule.start(0)
    schedule.stop()
    schedule.begin_epoch(50)
    assert not schedule.is_due(50)


@pytest.mark.parametrize("every", [0, "batch", 1.5, True])
def test_bad_arguments(every):
    with pytest.raises(ValueError, match=r"`timeline_every` must be .*Received: timeline_every="):
        ProfilingSchedule(every)
