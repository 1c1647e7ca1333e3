"""The cases of `test_transparency.py`: small models, data and compile settings that users have."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
from keras import layers, ops

NUM_SAMPLES = 19  # With batches of 8, the last one has 3.
BATCH_SIZE = 8


@dataclass
class Case:
    """A model with the data and settings to train it.

    `model` builds it anew, with the same initial weights each time. `compile` gives the
    arguments of `compile`, `fit` those of `fit`. `warning` is part of the only warning that
    training gives, or `None` where it gives none.
    """

    model: Callable[[], keras.Model]
    fit: Callable[[], dict[str, Any]]
    compile: Callable[[], dict[str, Any]]
    tolerance: float = 1e-5
    policy: str = "float32"
    floatx: str = "float32"
    warning: str | None = None


class KeepsGradients(keras.optimizers.SGD):
    """SGD with momentum that keeps the last gradients in slots, where a test can see them."""

    def __init__(self, learning_rate=0.1, momentum=0.9, **kwargs):
        super().__init__(learning_rate=learning_rate, momentum=momentum, **kwargs)

    def build(self, variables):
        super().build(variables)
        self.kept = self.add_optimizer_variables(variables, "gradient")

    def update_step(self, gradient, variable, learning_rate):
        kept = self.kept[self._get_variable_index(variable)]
        kept.assign(ops.convert_to_tensor(gradient) + ops.zeros_like(kept))
        super().update_step(gradient, variable, learning_rate)


def data(seed: int = 0):
    return np.random.default_rng(seed)


def features():
    x = data().normal(size=(NUM_SAMPLES, 6)).astype("float32")
    return {"x": x, "y": data(1).integers(0, 3, NUM_SAMPLES)}


def regression():
    x = data().normal(size=(NUM_SAMPLES, 6)).astype("float32")
    return {"x": x, "y": data(1).normal(size=(NUM_SAMPLES, 3)).astype("float32")}


def tokens(num_labels: int = 4):
    """Sequences of very uneven length: the first four are empty, some are full."""
    generator = data()
    lengths = generator.integers(1, 8, NUM_SAMPLES)
    lengths[:4], lengths[5], lengths[9] = 0, 7, 1
    x = generator.integers(1, 20, (NUM_SAMPLES, 7))
    x[np.arange(7)[None] >= lengths[:, None]] = 0
    return {"x": x, "y": generator.integers(0, num_labels, (NUM_SAMPLES, 7))}


def weighted(batch, seed=5):
    weight = data(seed).uniform(0.0, 3.0, NUM_SAMPLES).astype("float32")
    return {**batch, "sample_weight": weight}


def weighted_tokens():
    weight = data(5).uniform(0.0, 3.0, (NUM_SAMPLES, 7)).astype("float32")
    return {**tokens(), "sample_weight": weight}


def settings(optimizer=None, loss="sparse_categorical_crossentropy", **rest):
    return {"optimizer": optimizer or KeepsGradients(), "loss": loss, **rest}


def mlp(**last):
    return keras.Sequential(
        [
            keras.Input((6,)),
            layers.Dense(8, activation="tanh"),
            layers.Dense(8, activation="tanh"),
            layers.Dense(7, activation="tanh"),
            layers.Dense(3, **(last or {"activation": "softmax"})),
        ]
    )


def regressor(**options):
    hidden = options.pop("hidden", {})
    return keras.Sequential(
        [
            keras.Input((6,)),
            layers.Dense(8, activation="tanh", **hidden),
            layers.Dense(8, activation="tanh", **hidden),
            layers.Dense(3, **options),
        ]
    )


def masked_lstm():
    return keras.Sequential(
        [
            keras.Input((7,), dtype="int32"),
            layers.Embedding(20, 6, mask_zero=True),
            layers.LSTM(6, return_sequences=True),
            layers.LSTM(5, return_sequences=True),
            layers.Dense(4, activation="softmax"),
        ]
    )


def masked_attention():
    inputs = keras.Input((7,), dtype="int32")
    x = layers.Embedding(20, 8, mask_zero=True)(inputs)
    x = layers.LayerNormalization()(x + layers.MultiHeadAttention(2, 4)(x, x))
    x = layers.LayerNormalization()(x + layers.MultiHeadAttention(2, 4)(x, x))
    return keras.Model(inputs, layers.Dense(4, activation="softmax")(x))


def masked_series():
    return keras.Sequential(
        [
            keras.Input((5, 3)),
            layers.Masking(),
            layers.GRU(6, return_sequences=True),
            layers.GRU(4),
            layers.Dense(1),
        ]
    )


def series():
    x = data().normal(size=(NUM_SAMPLES, 5, 3)).astype("float32")
    x[::3, 2:] = 0.0
    return {"x": x, "y": data(1).normal(size=(NUM_SAMPLES, 1)).astype("float32")}


def two_outputs():
    inputs = keras.Input((6,))
    trunk = layers.Dense(8, activation="tanh")(inputs)
    value = layers.Dense(2, name="value")(trunk)
    deep = layers.Dense(8, activation="tanh")(trunk)
    kind = layers.Dense(3, activation="softmax", name="kind")(deep)
    return keras.Model(inputs, {"kind": kind, "value": value})


def two_targets():
    targets = {
        "kind": data(1).integers(0, 3, NUM_SAMPLES),
        "value": data(2).normal(size=(NUM_SAMPLES, 2)).astype("float32"),
    }
    return {"x": features()["x"], "y": targets}


def two_losses(**rest):
    losses = {"kind": "sparse_categorical_crossentropy", "value": "mse"}
    return settings(loss=losses, loss_weights={"kind": 0.3, "value": 2.0}, **rest)


def masked_and_unmasked():
    """Two outputs whose losses are divided by different things."""
    inputs = keras.Input((7,), dtype="int32")
    x = layers.Embedding(20, 6, mask_zero=True)(inputs)
    x = layers.LSTM(6, return_sequences=True)(x)
    tags = layers.Dense(4, activation="softmax", name="tags")(x)
    whole = layers.Dense(2, name="whole")(layers.LSTM(5)(x))
    return keras.Model(inputs, [tags, whole])


def masked_and_unmasked_targets():
    batch = tokens()
    whole = data(3).normal(size=(NUM_SAMPLES, 2)).astype("float32")
    return {"x": batch["x"], "y": [batch["y"], whole]}


@keras.saving.register_keras_serializable("tests")
class AddsLoss(layers.Layer):
    def __init__(self, how, **kwargs):
        super().__init__(**kwargs)
        self.how = how

    def call(self, inputs):
        reduce = ops.mean if self.how == "mean" else ops.sum
        self.add_loss(0.1 * reduce(ops.square(inputs)))
        return inputs


def adds_loss(how):
    return lambda: keras.Sequential(
        [
            keras.Input((6,)),
            layers.Dense(8, activation="tanh"),
            AddsLoss(how),
            layers.Dense(8, activation="tanh", activity_regularizer="l2"),
            layers.Dense(3, activation="softmax"),
        ]
    )


def regularized():
    l2, l1 = keras.regularizers.L2(0.03), keras.regularizers.L1(0.02)
    return keras.Sequential(
        [
            keras.Input((6,)),
            layers.Dense(8, activation="tanh", kernel_regularizer=l2, bias_regularizer=l1),
            layers.Dense(8, activation="tanh", activity_regularizer=l1),
            layers.Dense(3, activation="softmax", kernel_regularizer=l1),
        ]
    )


def tied_embedding():
    inputs = keras.Input((7,), dtype="int32")
    embedding = layers.ReversibleEmbedding(20, 6)
    x = embedding(inputs)
    x = x + layers.Dense(6, activation="tanh")(x)
    x = x + layers.Dense(6, activation="tanh")(x)
    return keras.Model(inputs, embedding(x, reverse=True))


def next_tokens():
    x = data().integers(1, 20, (NUM_SAMPLES, 7))
    return {"x": x, "y": np.roll(x, -1, axis=1)}


def shared_layer():
    inputs = keras.Input((6,))
    shared = layers.Dense(6, activation="tanh")
    x = shared(inputs)
    x = layers.Dense(6, activation="tanh")(x)
    x = shared(x)
    x = layers.Dense(6, activation="tanh")(x)
    return keras.Model(inputs, layers.Dense(3, activation="softmax")(shared(x)))


def long_skips():
    inputs = keras.Input((6,))
    first = layers.Dense(8, activation="tanh")(inputs)
    second = layers.Dense(8, activation="tanh")(first)
    third = layers.Dense(8, activation="tanh")(second)
    x = layers.Concatenate()([third, first, inputs])
    x = layers.Add()([layers.Dense(8, activation="tanh")(x), second])
    return keras.Model(inputs, layers.Dense(3, activation="softmax")(x))


def sparse_rows():
    return keras.Sequential(
        [
            keras.Input((7,), dtype="int32"),
            layers.Embedding(50, 4),
            layers.GlobalAveragePooling1D(),
            layers.Dense(6, activation="tanh"),
            layers.Dense(3, activation="softmax"),
        ]
    )


def sparse_data():
    return {"x": next_tokens()["x"], "y": data(1).integers(0, 3, NUM_SAMPLES)}


def constrained():
    unit = keras.constraints.UnitNorm()
    return keras.Sequential(
        [
            keras.Input((6,)),
            layers.Dense(8, activation="tanh", kernel_constraint=unit),
            layers.Dense(8, activation="tanh", kernel_constraint=keras.constraints.NonNeg()),
            layers.Dense(3, activation="softmax", bias_constraint=keras.constraints.MaxNorm(0.1)),
        ]
    )


def nested():
    encoder_input = keras.Input((6,))
    x = layers.Dense(8, activation="tanh")(encoder_input)
    encoder = keras.Model(encoder_input, layers.Dense(5, activation="tanh")(x), name="encoder")
    decoder = keras.Sequential(
        [keras.Input((5,)), layers.Dense(8, activation="tanh"), layers.Dense(6)], name="decoder"
    )
    inputs = keras.Input((6,))
    code = encoder(inputs)
    again = encoder(decoder(code))
    return keras.Model(inputs, layers.Dense(3, activation="softmax")(code + again))


def several_inputs():
    left, right = keras.Input((6,), name="left"), keras.Input((2,), name="right")
    x = layers.Dense(8, activation="tanh")(left)
    x = layers.Dense(6, activation="tanh")(x)
    x = layers.Concatenate()([x, right])
    x = layers.Dense(6, activation="tanh")(x)
    inputs = {"left": left, "right": right}
    return keras.Model(inputs, layers.Dense(3, activation="softmax")(x))


def several_inputs_data():
    batch = features()
    right = data(7).normal(size=(NUM_SAMPLES, 2)).astype("float32")
    return {**batch, "x": {"left": batch["x"], "right": right}}


def frozen_and_weightless():
    model = keras.Sequential(
        [
            keras.Input((6,)),
            layers.Dense(8, activation="tanh"),
            layers.Dense(8, activation="tanh", trainable=False),
            layers.Reshape((2, 4)),
            layers.Flatten(),
            layers.Activation("tanh"),
            layers.Dense(3, activation="softmax"),
        ]
    )
    return model


@keras.saving.register_keras_serializable("tests")
def squared(y_true, y_pred):
    """A loss for each sample."""
    return ops.mean(ops.square(y_pred - y_true), axis=-1)


@keras.saving.register_keras_serializable("tests")
def squared_mean(y_true, y_pred):
    """A mean over everything, as many users write it."""
    return ops.mean(ops.square(y_pred - y_true))


@keras.saving.register_keras_serializable("tests")
def squared_sum(y_true, y_pred):
    return 0.1 * ops.sum(ops.square(y_pred - y_true))


@keras.saving.register_keras_serializable("tests")
def in_batch_contrast(y_true, y_pred):
    """Each sample against all others of the batch."""
    scores = ops.matmul(y_pred, ops.transpose(y_true))
    labels = ops.arange(ops.shape(scores)[0])
    return keras.losses.sparse_categorical_crossentropy(labels, scores, from_logits=True)


@keras.saving.register_keras_serializable("tests")
def root_of_mean(y_true, y_pred):
    """A metric that does not add up over parts of a batch."""
    return ops.sqrt(ops.mean(ops.square(y_pred - y_true)))


def reduction(name, loss=keras.losses.MeanSquaredError, **rest):
    return lambda: settings(loss=loss(reduction=name), **rest)


SGD = {"learning_rate": 0.1, "momentum": 0.9}


def optimizer(kind=KeepsGradients, **options):
    return lambda: settings(optimizer=kind(**options))


def ignored_class():
    loss = keras.losses.SparseCategoricalCrossentropy(ignore_class=0)
    return settings(loss=loss)


def every_metric():
    cross_entropy = "sparse_categorical_crossentropy"
    metrics = ["accuracy", keras.metrics.SparseTopKCategoricalAccuracy(2), cross_entropy]
    return settings(metrics=metrics, weighted_metrics=["accuracy"])


def loss_scaled():
    """Starts so high that the first steps overflow, and grows again soon after."""
    inner = keras.optimizers.SGD(0.05, momentum=0.9)
    scaled = keras.optimizers.LossScaleOptimizer(inner, 2.0**24, dynamic_growth_steps=2)
    return settings(optimizer=scaled, metrics=["accuracy"])


COUPLES = "couples the samples"
DOES_NOT_ADD_UP = "does not add up"
DOUBLE: dict[str, Any] = {"policy": "float64", "floatx": "float64", "tolerance": 1e-12}

# What stages compute and pass on to one another.
NETWORKS = {
    "dense": Case(mlp, features, lambda: settings(metrics=["accuracy"])),
    "mask_lstm": Case(masked_lstm, tokens, lambda: settings(metrics=["accuracy"])),
    # In double precision: gradients of nearly 0 have 1.1e-5 of float32's rounding in them.
    "mask_attention": Case(masked_attention, tokens, settings, **DOUBLE),
    "mask_series": Case(masked_series, series, lambda: settings(loss="mse", metrics=["mae"])),
    "mask_and_none": Case(
        masked_and_unmasked,
        masked_and_unmasked_targets,
        lambda: settings(loss=["sparse_categorical_crossentropy", "mse"], loss_weights=[1.0, 0.5]),
    ),
    "two_outputs": Case(
        two_outputs, two_targets, lambda: two_losses(metrics={"kind": ["accuracy"]})
    ),
    "add_loss_sum": Case(adds_loss("sum"), features, settings),
    "tied_embedding": Case(
        tied_embedding,
        next_tokens,
        lambda: settings(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True)),
    ),
    "shared_layer": Case(shared_layer, features, settings),
    "long_skips": Case(long_skips, features, settings),
    "nested": Case(nested, features, settings),
    "several_inputs": Case(several_inputs, several_inputs_data, settings),
    "frozen_and_weightless": Case(frozen_and_weightless, features, settings),
    "sparse_gradients": Case(sparse_rows, sparse_data, settings),
    # float16 has three digits. The loss scale itself has to be the same.
    "mixed_float16": Case(mlp, features, loss_scaled, policy="mixed_float16", tolerance=5e-3),
    "float64": Case(regularized, features, settings, **DOUBLE),
}
# Networks of above in another precision, or with another term added to the loss.
VARIANTS = {
    # bfloat16 has two digits, and loses one where samples cancel.
    "mixed_bfloat16": Case(mlp, features, settings, policy="mixed_bfloat16", tolerance=6e-2),
    "add_loss_mean": Case(adds_loss("mean"), features, settings),
    "regularizers": Case(regularized, features, settings),
}
# Losses that are taken once, when the outputs of all micro-batches are gathered.
GATHERED = {
    "coupled_loss": Case(
        regressor,
        regression,
        lambda: settings(loss=in_batch_contrast, metrics=["mae"]),
        warning=COUPLES,
    ),
}
# What happens to the outputs of a micro-batch: losses, weights of samples, metrics.
LOSSES = {
    "sample_weight": Case(
        mlp, lambda: weighted(features()), lambda: settings(weighted_metrics=["accuracy"])
    ),
    "class_weight": Case(
        mlp, lambda: {**features(), "class_weight": {0: 0.2, 1: 3.0, 2: 1.0}}, settings
    ),
    "mask_lstm_weighted": Case(masked_lstm, weighted_tokens, settings),
    # What it is divided by depends on the labels, so that it does couple samples.
    "ignore_class": Case(masked_attention, tokens, ignored_class, **DOUBLE, warning=COUPLES),
    "reduction_sum": Case(regressor, lambda: weighted(regression()), reduction("sum")),
    "reduction_mean": Case(
        regressor, lambda: weighted(regression()), reduction("sum_over_batch_size")
    ),
    "reduction_weighted_mean": Case(
        regressor, lambda: weighted(regression()), reduction("mean_with_sample_weight")
    ),
    "reduction_weighted_mean_masked": Case(
        masked_lstm,
        weighted_tokens,
        reduction("mean_with_sample_weight", keras.losses.SparseCategoricalCrossentropy),
    ),
    "reduction_none": Case(regressor, regression, reduction("none", optimizer=None)),
    "custom_loss": Case(regressor, lambda: weighted(regression()), lambda: settings(loss=squared)),
    "custom_mean": Case(regressor, regression, lambda: settings(loss=squared_mean)),
    "custom_sum": Case(regressor, regression, lambda: settings(loss=squared_sum)),
    "coupled_stock_loss": Case(
        lambda: mlp(activation="sigmoid"),
        lambda: {**features(), "y": data(1).integers(0, 2, (NUM_SAMPLES, 3)).astype("float32")},
        lambda: settings(loss="dice"),
        warning=COUPLES,
    ),
    "metrics": Case(mlp, lambda: weighted(features()), every_metric),
    "metric_that_couples": Case(
        regressor,
        regression,
        lambda: settings(loss="mse", metrics=[root_of_mean, "mae"]),
        warning=DOES_NOT_ADD_UP,
    ),
}
# What happens to the sum of all gradients.
OPTIMIZERS = {
    "sparse_adam": Case(
        sparse_rows, sparse_data, optimizer(keras.optimizers.Adam, learning_rate=0.01, clipnorm=0.1)
    ),
    "global_clipnorm": Case(mlp, features, optimizer(global_clipnorm=0.1)),
    "clipnorm": Case(mlp, features, optimizer(clipnorm=0.1)),
    "clipvalue": Case(mlp, features, optimizer(clipvalue=0.02)),
    "adamw": Case(
        mlp, features, optimizer(keras.optimizers.AdamW, learning_rate=0.01, weight_decay=0.1)
    ),
    "ema": Case(
        mlp, features, optimizer(use_ema=True, ema_momentum=0.8, ema_overwrite_frequency=4)
    ),
    "accumulation": Case(mlp, features, optimizer(gradient_accumulation_steps=2)),
    "loss_scale_factor": Case(mlp, features, optimizer(loss_scale_factor=64.0)),
    "constraints": Case(constrained, features, settings),
}
CASES = {**NETWORKS, **VARIANTS, **GATHERED, **LOSSES, **OPTIMIZERS}
