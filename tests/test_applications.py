"""Models nobody here wrote: those of `keras.applications`, with small inputs and random weights.

In float64: these models have batch normalization over the two samples of a micro-batch in their
deepest layers, which turns a difference in the last digit into one in the second. And without
TensorFlow's graph optimizer, which changes last digits in traced functions, but not in the eager
calls that they are compared with: in ResNet50 that alone is 1.6e-6 of the loss.
"""

import os
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_mgpu import PipelineSplit

# Stages of each.
MODELS = {"MobileNetV2": 4}
if "KERAS_MGPU_TORTURE" in os.environ:  # `make torture`: they take minutes.
    MODELS |= {"EfficientNetB0": 2, "ResNet50": 4, "DenseNet121": 2}
MICRO_BATCHES, SIZE = 2, 32


def data():
    generator = np.random.default_rng(0)
    x = generator.uniform(-1, 1, (4, SIZE, SIZE, 3))
    return x, generator.integers(0, 5, 4)


def make(name):
    keras.backend.clear_session()
    keras.utils.set_random_seed(0)
    build = getattr(keras.applications, name)
    return build(weights=None, input_shape=(SIZE, SIZE, 3), classes=5)


def gradients_of_plain_keras(model, x, y):
    """Plain Keras on the same micro-batches: one call for each, one loss of all outputs."""
    with tf.GradientTape() as tape:
        outputs = [model(part, training=True) for part in np.split(x, MICRO_BATCHES)]
        losses = keras.losses.sparse_categorical_crossentropy(y, tf.concat(outputs, 0))
        loss = tf.reduce_mean(losses)
    return loss, tape.gradient(loss, [v.value for v in model.trainable_variables])


class KeepsGradients(keras.optimizers.SGD):
    def build(self, variables):
        super().build(variables)
        self.kept = self.add_optimizer_variables(variables, "gradient")

    def update_step(self, gradient, variable, learning_rate):
        self.kept[self._get_variable_index(variable)].assign(gradient)


def without_dropout(model):
    """Whose draws depend on how a batch is cut; it has tests of its own."""
    for layer in model.layers:
        if isinstance(layer, keras.layers.Dropout):
            layer.rate = 0.0
    return model


@pytest.fixture(autouse=True)
def _double_precision():
    keras.backend.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    yield
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": False})
    keras.backend.set_floatx("float32")


@pytest.mark.parametrize(("name", "num_stages"), MODELS.items())
def test_same_outputs_and_gradients(name, num_stages, devices):
    x, y = data()
    model = without_dropout(make(name))
    expected = model.predict(x, verbose=0)
    weights = model.get_weights()
    loss, gradients = gradients_of_plain_keras(model, x, y)
    model.set_weights(weights)  # Statistics of batch normalization have moved.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Batch normalization by micro-batch is what we compare.
        split = PipelineSplit(model, devices[:num_stages], MICRO_BATCHES)
    np.testing.assert_allclose(split.predict(x, verbose=0), expected, rtol=1e-8, atol=1e-10)
    split.compile(KeepsGradients(0.0), "sparse_categorical_crossentropy")
    history = split.fit(x, y, batch_size=4, shuffle=False, verbose=0)
    np.testing.assert_allclose(history.history["loss"][0], loss, rtol=1e-8)
    largest = max(float(tf.reduce_max(tf.abs(g))) for g in gradients)
    for variable, kept, gradient in zip(model.trainable_variables, split.optimizer.kept, gradients):
        scale = max(float(tf.reduce_max(tf.abs(gradient))), 1e-4 * largest)
        worst = float(np.max(np.abs(kept.numpy() - gradient.numpy()))) / scale
        assert worst < 1e-6, f"{variable.path}: {worst:.1e}"
