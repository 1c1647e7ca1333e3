"""What `compile` makes of losses, before any batch is trained."""

import keras
import numpy as np
from keras import layers

from keras_mgpu.internals import keras_losses


def two_outputs():
    inputs = keras.Input((3,))
    return keras.Model(
        inputs, [layers.Dense(2, name="a")(inputs), layers.Dense(1, name="b")(inputs)]
    )


def built(model, y):
    x = np.ones((4, 3), "float32")
    y_pred = model(x)
    keras_losses.build_losses_and_metrics(model, x, y, y_pred, None)
    return y_pred


def test_each_loss_is_given_its_own_labels_and_predictions():
    model = two_outputs()
    model.compile("sgd", ["mse", "mae"], loss_weights=[1.0, 0.5])
    y = [np.zeros((4, 2), "float32"), np.ones((4, 1), "float32")]
    y_pred = built(model, y)
    loss = keras_losses.compiled_loss_of(model)
    given = keras_losses.recorded_losses(loss, y, y_pred, None)
    assert [(labels.shape, predicted.shape) for labels, predicted, _ in given] == [
        ((4, 2), (4, 2)),
        ((4, 1), (4, 1)),
    ]
    entries = [entry for entry, _ in keras_losses.loss_entries(loss)]
    assert [entry.loss.name for entry in entries] == ["mse", "mae"]
    assert [entry.loss_weights for entry in entries] == [1.0, 0.5]


def test_looking_counts_for_no_metric():
    model = two_outputs()
    model.compile("sgd", ["mse", "mae"])
    y = [np.zeros((4, 2), "float32"), np.ones((4, 1), "float32")]
    y_pred = built(model, y)
    loss = keras_losses.compiled_loss_of(model)
    keras_losses.recorded_losses(loss, y, y_pred, None)
    assert [float(metric.result()) for metric in loss.metrics] == [0.0, 0.0]
    loss(y, y_pred)
    assert all(float(metric.result()) > 0 for metric in loss.metrics)


def test_metrics_are_made_without_running_anything():
    model = keras.Sequential([keras.Input((3,)), layers.Dense(2)])
    model.compile("sgd", "mse", metrics=["mae"])
    built(model, np.zeros((4, 2), "float32"))
    metrics = keras_losses.compiled_metrics_of(model)
    assert metrics.built
    assert [float(variable.numpy().sum()) for variable in metrics.variables] == [0.0, 0.0]


def test_a_model_without_loss():
    model = two_outputs()
    model.compile("sgd")
    assert keras_losses.compiled_loss_of(model) is None
