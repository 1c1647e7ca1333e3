"""The end of the pipeline: parts of a loss add up to Keras's own number."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers
from simulated import DEVICES

from keras_mgpu.model import layer_calls
from keras_mgpu.pipeline.loss.compiled_loss import CompiledLoss
from keras_mgpu.pipeline.loss.loss_head import LossHead, merge_masked
from keras_mgpu.pipeline.micro_batches import Batch, sizes_of, split

Y = np.random.default_rng(0).normal(size=(5, 3)).astype("float32")
PRED = np.random.default_rng(1).normal(size=(5, 3)).astype("float32")


def couples_samples(y_true, y_pred):
    return keras.ops.max(keras.ops.square(y_true - y_pred))


@pytest.mark.parametrize(
    ("loss", "weight"),
    [
        ("mse", None),
        ("mse", np.arange(5.0, dtype="float32")),
        (keras.losses.MeanSquaredError(reduction="sum"), None),
        pytest.param(
            couples_samples,
            None,
            marks=pytest.mark.filterwarnings("ignore:.*couples the samples of a batch"),
        ),
    ],
    ids=["mean", "weighted mean", "sum", "coupled"],
)
def test_loss_and_gradients_are_the_whole_batchs(loss, weight):
    model = keras.Sequential([keras.Input((3,)), layers.Dense(3)])
    model.compile(loss=loss, metrics=["mae"])
    batch = Batch.of(tf.constant(PRED), tf.constant(Y), _tensor(weight), num_micro_batches=2)
    compiled = CompiledLoss(model, DEVICES[0], eager=True, num_micro_batches=2)
    compiled.get_ready(batch.x, batch.y, batch.x, batch.sample_weight)
    head = LossHead(
        compiled, batch, layer_calls.from_model(model), training=True, scale=tf.constant(2.0)
    )
    for index, part in enumerate(split(tf.constant(PRED), batch.sizes)):
        head.take_outputs(index, [part])
    gradients = [head.output_gradients(index)[0][0] for index in range(2)]
    value = head.finish()

    with tf.GradientTape() as tape:
        y_pred = tf.constant(PRED)
        tape.watch(y_pred)
        expected = model.compute_loss(None, tf.constant(Y), y_pred, weight)
    np.testing.assert_allclose(value, expected, rtol=1e-6)
    np.testing.assert_allclose(
        np.concatenate(gradients), 2.0 * tape.gradient(expected, y_pred), rtol=1e-5, atol=1e-7
    )
    results = model.get_metrics_result()
    np.testing.assert_allclose(results["mae"], np.mean(np.abs(Y - PRED)), rtol=1e-6)


def test_outputs_come_back_without_rows_that_count_for_nothing():
    sizes = sizes_of(tf.zeros((2, 3)), 4)  # Fewer samples than micro-batches.
    parts = split(tf.constant([[1.0], [2.0]]), sizes)
    assert [int(part.shape[0]) for part in parts] == [1, 1, 1, 1]
    np.testing.assert_array_equal(merge_masked(parts, sizes), [[1.0], [2.0]])


def _tensor(value):
    return None if value is None else tf.constant(value)
