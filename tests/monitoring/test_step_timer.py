from keras_mgpu.monitoring.step_timer import StepTimer


def test_time_between_steps_adds_up():
    timer = StepTimer()
    timer.start(100.0)
    timer.begin_step(100.5)
    timer.end_step(102.0)
    assert (timer.end, timer.between_steps) == (102.0, 0.5)
    timer.begin_step(102.25)
    timer.end_step(104.0)
    assert (timer.end, timer.between_steps) == (104.0, 0.75)


def test_the_time_between_two_runs_does_not_count():
    timer = StepTimer()
    for start in (100.0, 900.0):
        timer.start(start)
        timer.begin_step(start + 1)
        timer.end_step(start + 2)
    assert timer.between_steps == 2.0
