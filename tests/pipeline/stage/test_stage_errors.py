"""Errors inside a pipeline name the stage they came from."""

import keras
import pytest
import tensorflow as tf
from keras import layers

from keras_mgpu.blueprint import partition
from keras_mgpu.model import layer_calls
from keras_mgpu.model.layer_costs import layer_costs
from keras_mgpu.model.stages import make_stages
from keras_mgpu.pipeline.stage.stage_errors import in_stage, in_step


@pytest.fixture
def stages():
    model = keras.Sequential(
        [keras.Input((2,)), layers.Dense(2, name="one"), layers.Dense(2, name="two")]
    )
    calls = layer_calls.from_model(model)
    return make_stages(calls, partition.balance(layer_costs(calls), 2), ["/GPU:0", "/GPU:1"])


def raised(scope, error):
    with pytest.raises(type(error)) as caught, scope:
        raise error
    return str(caught.value)


def test_a_step_finds_the_stage_in_the_name_of_the_op(stages):
    error = tf.errors.InvalidArgumentError(None, None, "at node stage_1/forward/dense/MatMul")
    assert raised(in_step(stages), error).startswith("In stage 1 (two) on /GPU:1: at node")


def test_running_out_of_memory_comes_with_advice(stages):
    error = tf.errors.ResourceExhaustedError(None, None, "stage_0/backward/MatMul: no memory")
    message = raised(in_step(stages), error)
    assert message.startswith("Out of memory in stage 0 (one) on /GPU:0.")
    assert "recompute" in message


def test_running_out_of_memory_beside_a_stage_names_it(stages):
    """As in the update of its weights, which is no part of any stage."""
    text = "adam/Mul: OOM on /job:localhost/replica:0/task:0/device:GPU:1 by allocator GPU_1_bfc"
    message = raised(in_step(stages), tf.errors.ResourceExhaustedError(None, None, text))
    assert "update of the weights, beside stage 1 (two) on /GPU:1." in message


def test_errors_of_no_stage_stay_as_they_are(stages):
    for text in ("somewhere else", "stage_7/forward/MatMul"):
        error = tf.errors.InternalError(None, None, text)
        assert raised(in_step(stages), error).startswith(text)


def test_the_end_of_the_data_is_no_error_of_a_stage(stages):
    error = tf.errors.OutOfRangeError(None, None, "stage_0/end of sequence")
    assert "In stage" not in raised(in_step(stages), error)


def test_an_error_that_cannot_be_made_again_is_a_runtime_error(stages):
    class NeedsTwo(Exception):
        def __init__(self, one, two):
            super().__init__(one, two)

    with pytest.raises(RuntimeError, match=r"In stage 0 \(one\)"), in_stage(stages[0]):
        raise NeedsTwo(1, 2)
