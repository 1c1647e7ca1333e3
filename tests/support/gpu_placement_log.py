"""Trains a pipeline on simulated GPUs with TensorFlow's placement log: `OPS.json` as argument.

Its stages have masks, an embedding, ops with one kernel for all kinds of devices, and ops that have
no kernel for GPUs.
"""

import dataclasses
import json
import sys

import keras
import numpy as np
import simulated
import tensorflow as tf
from pinned import Pinned, ToText

import keras_mgpu as km


class Hashed(keras.layers.Layer):
    """Adds a number for each sample, by way of text, a table of distinct values and a loop."""

    def call(self, x):
        text = tf.strings.as_string(tf.cast(tf.reduce_sum(x, axis=[1, 2]), "int32"))
        bucket = tf.strings.to_hash_bucket_fast(text, 7)
        _, index = tf.unique(bucket)
        turned = tf.math.invert_permutation(tf.range(tf.shape(x)[0]))
        total = tf.while_loop(lambda n, _: n < 3, lambda n, t: (n + 1, t + index), [0, turned])[1]
        return x + 1e-3 * tf.cast(total, x.dtype)[:, None, None]

    def compute_output_shape(self, shape):
        return shape


def make_model():
    tokens = keras.Input((6,), dtype="int32")
    x = keras.layers.Embedding(20, 8, mask_zero=True, name="embedding")(tokens)
    x = keras.layers.LSTM(8, return_sequences=True, use_cudnn=False, name="lstm")(x)
    x = Hashed(name="hashed")(x)
    x = keras.layers.MultiHeadAttention(2, 4, name="attention")(x, x)
    x = keras.layers.BatchNormalization(name="norm")(x)
    x = keras.layers.GlobalAveragePooling1D(name="pool")(x)
    x = Pinned(8, "/GPU:2", name="elsewhere")(x)
    x = Pinned(8, "/GPU:7", name="nowhere")(x)
    x = Pinned(8, "/CPU:0", name="on_the_host")(x)
    x = ToText("/GPU:1", name="text")(keras.layers.Dropout(0.2, name="dropout")(x))
    return keras.Model(tokens, keras.layers.Dense(3, name="head")(x))


def main(path):
    simulated.start()
    tf.debugging.set_log_device_placement(True)
    split = km.PipelineSplit(make_model(), simulated.DEVICES[:2], micro_batches=2, cuts=["hashed"])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    split.compile(keras.optimizers.AdamW(clipnorm=1.0), loss, metrics=["accuracy"])
    logger = km.DevicePlacementLogger(verbose=0)
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 20, (8, 6)), rng.integers(0, 3, 8)
    split.fit(x, y, batch_size=8, verbose=0, callbacks=[logger])
    with open(path, "w") as file:
        json.dump([dataclasses.asdict(op) for op in logger.report.ops], file)


if __name__ == "__main__":
    main(sys.argv[1])
