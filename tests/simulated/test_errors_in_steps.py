"""What users see when something fails on a GPU while other GPUs wait for it."""

import keras
import numpy as np
import pytest
import simgpu
import tensorflow as tf
from keras import layers

import keras_mgpu as km


class Repeats(layers.Layer):
    """Needs as much memory for a moment as its weight says."""

    def __init__(self, **options):
        super().__init__(**options)
        self.times = self.add_weight(shape=(), trainable=False, initializer="zeros", name="times")

    def call(self, inputs):
        size = tf.stack([tf.cast(self.times.value, tf.int32), 1 << 20])
        return inputs + 1e-30 * tf.reduce_max(tf.sin(tf.fill(size, inputs[0, 0])))

    def compute_output_shape(self, input_shape):
        return input_shape


@pytest.mark.parametrize("stage", [0, 1])
def test_out_of_memory_in_a_step(devices, stage):
    with tf.device("/CPU:0"):
        stack = [layers.Dense(8, name=f"dense_{index}") for index in range(4)]
        stack.insert(1 + 2 * stage, Repeats(name="repeats"))
        model = keras.Sequential([keras.Input((4,)), *stack])
    split = km.PipelineSplit(model, devices[:2], micro_batches=4, cuts=["dense_1"])
    split.compile("sgd", "mse")
    x, y = np.ones((16, 4), "float32"), np.zeros((16, 8), "float32")
    split.fit(x, y, batch_size=16, verbose=0)
    before = split.model.get_weights()
    model.get_layer("repeats").times.assign(40)  # 160 MiB.
    used = simgpu.stats()[stage]["reserved"]
    with simgpu.memory_limit(stage, used + (32 << 20)):
        with pytest.raises(tf.errors.ResourceExhaustedError) as caught:
            split.fit(x, y, batch_size=16, verbose=0)
    message = str(caught.value)
    assert message.startswith(f"Out of memory in stage {stage} (")
    assert f"on {devices[stage]}" in message
    assert "layer 'repeats'" in message
    assert "micro_batches" in message
    for value, reference in zip(split.model.get_weights()[:1], before[:1]):
        np.testing.assert_array_equal(value, reference)  # No step was taken.
    model.get_layer("repeats").times.assign(0)
    split.fit(x, y, batch_size=16, verbose=0)
