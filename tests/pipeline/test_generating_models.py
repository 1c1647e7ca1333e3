"""Models that generate, such as those of keras_hub, and keep a traced function for it."""

import keras
import numpy as np
import tensorflow as tf

import keras_mgpu as km

X = np.ones((8, 4), "float32")


class Generates(keras.Model):
    """Keeps its traced function in the same attribute as keras_hub's models."""

    generate_function = None

    def generate(self, x):
        if self.generate_function is None:
            self.generate_function = tf.function(lambda x: self(x, training=False))
        return self.generate_function(tf.constant(x))


def test_what_was_traced_before_the_split_does_not_generate_with_old_weights(devices):
    inputs = keras.Input((4,))
    model = Generates(inputs, keras.layers.Dense(2)(keras.layers.Dense(4)(inputs)))
    model.compile("sgd", "mse")
    before = model.generate(X)
    split = km.PipelineSplit(model, devices[:2], micro_batches=2)
    split.fit(X, np.ones((8, 2), "float32"), verbose=0)
    after = model.generate(X)
    assert not np.allclose(after, before)
    np.testing.assert_allclose(after, split.predict(X, verbose=0), rtol=1e-5)
