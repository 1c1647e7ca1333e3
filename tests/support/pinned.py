"""Layers that ask for devices, as users write them."""

import keras
import tensorflow as tf


@keras.saving.register_keras_serializable("tests")
class Pinned(keras.layers.Layer):
    """A dense layer with weights and ops on one device."""

    def __init__(self, units, device, **options):
        super().__init__(**options)
        self.units, self.device = units, device

    def build(self, shape):
        with tf.device(self.device):
            self.kernel = self.add_weight(shape=(shape[-1], self.units), name="kernel")

    def call(self, x):
        with tf.device(self.device):
            return tf.nn.relu(tf.matmul(x, self.kernel))

    def compute_output_shape(self, shape):
        return (*shape[:-1], self.units)


class ToText(keras.layers.Layer):
    """Uses an op that no GPU can run."""

    def __init__(self, device, **options):
        super().__init__(**options)
        self.device = device

    def call(self, x):
        with tf.device(self.device):
            text = tf.strings.as_string(tf.stop_gradient(x))
            return x + 0.0 * tf.strings.to_number(text)

    def compute_output_shape(self, shape):
        return shape


def make_model(first, second, units=8, text=False):
    inputs = keras.Input((4,))
    x = Pinned(units, first, name="first")(inputs)
    if text:
        x = ToText(first, name="text")(x)
    outputs = Pinned(2, second, name="second")(x)
    model = keras.Model(inputs, outputs, name="net")
    model.compile("adam", "mse", jit_compile=False)
    return model
