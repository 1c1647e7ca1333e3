"""From what a user asks for to a plan and a schedule."""

import keras
import pytest
from keras import layers

from keras_mgpu.blueprint import named_schedules
from keras_mgpu.pipeline import planning, validation


@pytest.fixture
def model():
    return keras.Sequential([keras.Input((4,)), *[layers.Dense(4, name=n) for n in "abcd"]])


def test_a_schedule_by_name_has_four_micro_batches_per_device():
    schedule = planning.make_schedule("1f1b", ["/GPU:0", "/GPU:1"], None, False)
    assert (schedule.num_stages, schedule.num_micro_batches) == (2, 8)
    alone = planning.make_schedule("1f1b", ["/GPU:0"], None, False)
    assert alone.num_micro_batches == 1  # Nothing to overlap.


def test_recomputing_automatically_spares_stages_that_keep_one_micro_batch():
    schedule = planning.make_schedule("1f1b", ["/GPU:0", "/GPU:1", "/GPU:2"], 6, "auto")
    assert schedule.recomputed_stages == {0, 1}


def test_a_custom_schedule_must_fit_the_devices():
    own = named_schedules.gpipe(2, 3)
    assert planning.make_schedule(own, ["/GPU:0", "/GPU:1"], None, False) == own
    with pytest.raises(ValueError, match="has 3 micro-batch"):
        planning.make_schedule(own, ["/GPU:0", "/GPU:1"], 4, False)
    with pytest.raises(ValueError, match="2 stage"):
        planning.make_schedule(own, ["/GPU:0"], None, False)


def test_cuts_make_the_plan(model):
    calls = planning.calls_of(model)
    plan = planning.make_plan(calls, ["a"], 2)
    assert plan.cuts == ("a",)
    assert planning.make_plan(calls, plan, 2) == plan
    with pytest.raises(ValueError, match="1 device"):
        planning.make_plan(calls, ["a"], 1)


def test_interleaved_stages_go_over_the_devices_in_turns(devices):
    names = planning.devices_of_stages(devices[:2], None, "interleaved")
    assert names == (*devices[:2], *devices[:2])
    with pytest.raises(ValueError, match="stages_per_device"):
        planning.devices_of_stages([devices[0], devices[0]], 2, "1f1b")


def test_a_model_that_trains_in_its_own_way_is_refused():
    class Own(keras.Sequential):
        def train_step(self, data):
            return {}

    own = Own([keras.Input((4,)), layers.Dense(2)])
    with pytest.raises(ValueError, match="`train_step`"):
        validation.check_training_is_keras_own(own)


def test_a_layer_with_a_state_per_sample_needs_the_batch_whole():
    stateful = [layers.LSTM(2, stateful=True, name="remembers")]
    validation.check_statelessness(stateful, num_micro_batches=1)
    with pytest.raises(ValueError, match="remembers"):
        validation.check_statelessness(stateful, num_micro_batches=2)
