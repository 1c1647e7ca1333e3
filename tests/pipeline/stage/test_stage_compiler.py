"""Whether XLA can compile a stage is tried, and what it cannot runs without."""

import logging

import pytest
import tensorflow as tf

from keras_mgpu.model.stages import Stage
from keras_mgpu.pipeline.stage.xla import StageCompiler, zeros_like_spec


class NamedStage(Stage):
    def __str__(self):
        return "stage 1 (words) on /CPU:0"


def compiler():
    return StageCompiler(NamedStage(1, "/CPU:0", (), (), (), (), ()))


def test_made_up_values_have_the_right_form():
    spec = tf.TensorSpec((None, 3, None), tf.int32)
    value = zeros_like_spec(spec, num_rows=5)
    assert (value.shape, value.dtype) == ((5, 3, 2), tf.int32)


def test_a_function_that_compiles_is_compiled():
    def make(jit_compile):
        function = tf.function(lambda x: x + 1.0, jit_compile=jit_compile)
        return function.get_concrete_function(tf.TensorSpec((None, 2), tf.float32))

    stage = compiler()
    stage.expect_rows(3)
    assert stage.compiled_or_not(make)(tf.zeros((3, 2))).shape == (3, 2)
    assert stage.is_on


def test_a_function_that_does_not_compile_runs_without_and_is_logged_once(caplog):
    made = []

    def make(jit_compile):
        made.append(jit_compile)
        function = tf.function(lambda x: tf.strings.as_string(x), jit_compile=jit_compile)
        return function.get_concrete_function(tf.TensorSpec((None,), tf.float32))

    stage = compiler()
    with caplog.at_level(logging.WARNING, "keras_mgpu"):
        first = stage.compiled_or_not(make)
        stage.compiled_or_not(make)
    assert made == [True, False, False]
    assert first(tf.zeros((2,))).dtype == tf.string
    assert caplog.messages == [
        "stage 1 (words) on /CPU:0 runs without XLA, which cannot compile the op AsString."
    ]


def test_a_device_without_memory_is_not_taken_for_an_op_that_does_not_compile():
    def run():
        raise tf.errors.ResourceExhaustedError(None, None, "OOM when allocating")

    stage = compiler()
    with pytest.raises(tf.errors.ResourceExhaustedError, match=r"trying stage 1 \(words\) on /CPU"):
        stage.try_out(run)
    assert stage.is_on
