from keras_mgpu.monitoring.step_totals import StepTotals, rates


def test_rates_between_two_steps():
    before = StepTotals(10, 100.0, num_samples=320, between_steps=1.0)
    now = StepTotals(20, 102.0, num_samples=640, between_steps=1.5)
    assert rates(before, now) == {
        "train/step_time": 200.0,
        "train/between_steps": 50.0,
        "train/samples_per_second": 160.0,
    }


def test_what_cannot_be_computed_is_left_out():
    before = StepTotals(10, 100.0)
    assert rates(before, before) == {}
    assert "train/samples_per_second" not in rates(before, StepTotals(11, 101.0))
