"""Faults that were found once: each stays mended."""

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers, ops
from versions import KERAS

from keras_mgpu import PipelineSplit

X = np.random.default_rng(0).normal(size=(10, 6)).astype("float32")
Y = np.random.default_rng(1).normal(size=(10, 3)).astype("float32")
WEIGHT = np.arange(10).astype("float32")
FIT = {"batch_size": 5, "shuffle": False, "verbose": 0}


def dense(*more):
    return keras.Sequential([keras.Input((6,)), layers.Dense(4), *more, layers.Dense(3)])


def pair(devices, make, micro_batches=3):
    """A plain model and a split one with the same weights."""
    plain, inner = make(), make()
    inner.set_weights(plain.get_weights())
    return plain, PipelineSplit(inner, devices[:2], micro_batches)


def test_weights_that_come_later_are_noticed(devices):
    losses = []
    for model in pair(devices, dense):
        loss = keras.losses.MeanSquaredError(reduction="mean_with_sample_weight")
        model.compile("sgd", loss)
        model.evaluate(X, Y, batch_size=5, verbose=0)
        losses.append(model.fit(X, Y, sample_weight=WEIGHT, **FIT).history["loss"])
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-5)


def ignores_minus_100(y_true, y_pred):
    counts = ops.cast(y_true != -100, "float32")
    labels = ops.where(y_true == -100, 0, y_true)
    values = keras.losses.sparse_categorical_crossentropy(labels, y_pred, from_logits=True)
    return ops.sum(values * counts) / ops.maximum(ops.sum(counts), 1.0)


def ignores_nan(y_true, y_pred):
    gaps = ops.isnan(y_true)
    distance = ops.where(gaps, 0.0, y_pred - ops.where(gaps, 0.0, y_true))
    return ops.sum(distance**2) / ops.sum(ops.cast(~gaps, "float32"))


def weighs_classes(y_true, y_pred):
    weight = ops.where(y_true == 2, 5.0, 1.0)
    values = keras.losses.sparse_categorical_crossentropy(y_true, y_pred, from_logits=True)
    return ops.sum(weight * values) / ops.sum(weight)


LABELS = np.array([-100, -100, -100, 1, 2, 0, -100, 1, 2, 2])
WITH_GAPS = np.where(np.arange(30).reshape(10, 3) % 4 == 0, np.nan, Y).astype("float32")
CLASSES = np.array([2, 2, 2, 0, 1, 0, 1, 1, 0, 2])


@pytest.mark.parametrize(
    ("loss", "y"),
    [(ignores_minus_100, LABELS), (ignores_nan, WITH_GAPS), (weighs_classes, CLASSES)],
)
def test_losses_that_couple_samples_only_for_some_labels(devices, loss, y):
    plain, split = pair(devices, dense)
    for model in (plain, split):
        model.compile("sgd", loss)
    expected = plain.fit(X, y, **FIT).history["loss"]
    with pytest.warns(UserWarning, match=f"{loss.__name__} couples the samples"):
        found = split.fit(X, y, **FIT).history["loss"]
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_sequences_of_open_length_do_not_look_coupled(devices):
    tokens = np.random.default_rng(2).integers(0, 20, (8, 7))
    model = keras.Sequential(
        [keras.Input((None,), dtype="int32"), layers.Embedding(20, 8), layers.Dense(20)]
    )
    split = PipelineSplit(model, devices[:2], micro_batches=4)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    split.compile("sgd", loss, metrics=["accuracy"])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        split.fit(tokens, tokens, verbose=0)
    assert not [each for each in caught if "couples the samples" in str(each.message)]


def test_a_weight_read_behind_the_back_of_its_layer_is_refused(devices):
    inputs = keras.Input((6,))
    tied = layers.Dense(6, name="tied")
    x = layers.Dense(6, name="middle")(tied(inputs))
    model = keras.Model(inputs, ops.matmul(layers.Dense(6)(x), tied.kernel))
    split = PipelineSplit(model, devices[:2], micro_batches=2, cuts=["middle"])
    split.compile("sgd", "mse")
    with pytest.raises(ValueError, match="reads the weight 'tied/kernel' of a layer in another"):
        split.fit(X, X, verbose=0)


def test_outputs_without_a_row_for_each_sample_are_refused(devices):
    def make():
        inputs = keras.Input((4, 6))
        x = ops.reshape(layers.Dense(5)(inputs), (-1, 5))
        return keras.Model(inputs, layers.Dense(3)(x))

    x = np.ones((8, 4, 6), "float32")
    with pytest.raises(tf.errors.InvalidArgumentError, match="one row per sample"):
        PipelineSplit(make(), devices[:2], micro_batches=4).predict(x, verbose=0)
    whole = PipelineSplit(make(), devices[:2], micro_batches=1).predict(x, verbose=0)
    assert whole.shape == (32, 3)


def test_stateful_layers_are_refused_with_micro_batches(devices):
    def make():
        return keras.Sequential(
            [keras.Input(batch_shape=(4, 3, 6)), layers.LSTM(4, stateful=True), layers.Dense(3)]
        )

    with pytest.raises(ValueError, match=r"'lstm' is stateful.*micro_batches=1"):
        PipelineSplit(make(), devices[:2], micro_batches=2)
    if KERAS < (3, 14):
        with pytest.raises(ValueError, match=r"needs Keras 3\.14"):
            PipelineSplit(make(), devices[:2], micro_batches=1)
        return
    model = make()
    split = PipelineSplit(model, devices[:2], micro_batches=1)
    x = np.random.default_rng(0).normal(size=(4, 3, 6)).astype("float32")
    first, second = (split.predict(x, verbose=0) for _ in range(2))
    assert not np.allclose(first, second)  # The second call goes on where the first one ended.
    model.layers[0].reset_states()
    np.testing.assert_allclose(split.predict(x, verbose=0), first, rtol=1e-5)


def test_state_that_moves_with_every_micro_batch_is_said(devices):
    model = dense(layers.SpectralNormalization(layers.Dense(4)))
    split = PipelineSplit(model, devices[:2], micro_batches=2)
    split.compile("sgd", "mse")
    with pytest.warns(UserWarning, match=r"vector_u' is updated once per micro-batch"):
        split.fit(X, Y, verbose=0)


def test_numpy_integers_are_integers(devices):
    assert PipelineSplit(dense(), devices[:2], micro_batches=np.int64(3)).micro_batches == 3


def test_recurrent_stages_can_be_measured(devices):
    """What a loop keeps is a list that numpy cannot hold, and a size may be a bare number."""
    model = keras.Sequential(
        [keras.Input((5,)), layers.Embedding(9, 4, mask_zero=True), layers.LSTM(4), layers.Dense(2)]
    )
    split = PipelineSplit(model, devices[:2], micro_batches=2, recompute=True)
    split.compile("sgd", "mse")
    split.fit(np.ones((8, 5)), np.ones((8, 2)), batch_size=8, verbose=0)
    costs, sizes = split.measure(4)
    assert all(seconds > 0 for seconds in costs.backward)
    assert sizes.inputs[0] >= 4 * 5 * 4
    with pytest.raises(ValueError, match="num_samples=0"):
        split.measure(0)


@pytest.mark.parametrize("dtype", ["float32", "mixed_float16"])
@pytest.mark.parametrize("schedule", ["1f1b", "zero_bubble"])
def test_no_micro_batch_keeps_a_weight(schedule, dtype, devices):
    """Neither a table, nor one that lives with another stage, nor one in another precision."""
    inputs = keras.Input((2,), dtype="int32")
    embedding = layers.ReversibleEmbedding(1000, 8, dtype=dtype)
    dense = layers.Dense(8, dtype=dtype)
    x = dense(embedding(inputs))
    x = layers.Activation("linear", dtype="float32")(embedding(x, reverse=True))
    model = keras.Model(inputs, layers.GlobalAveragePooling1D()(x))
    options = {"micro_batches": 2, "cuts": [dense.name], "schedule": schedule}
    split = PipelineSplit(model, devices[:2], **options)
    split.compile("sgd", "mse")
    split.fit(np.ones((4, 2)), np.ones((4, 1000)), batch_size=4, verbose=0)
    _, sizes = split.measure(1)
    for each in (*sizes.inputs, *sizes.activations, *sizes.for_weights):
        assert each < 2 * 1000 * 8, sizes


def test_a_nested_model_is_cut_inside(devices):
    inner = keras.Sequential([keras.Input((4,)), *[layers.Dense(4) for _ in range(4)]], name="in")
    model = keras.Sequential([keras.Input((4,)), inner, layers.Dense(2)])
    split = PipelineSplit(model, devices[:2], cuts=[f"in/{inner.layers[1].name}"])
    assert [len(stage.layers) for stage in split.stages] == [2, 3]


@pytest.mark.filterwarnings("ignore:.*couples the samples of a batch")
def test_metrics_are_updated_where_a_loss_couples_samples(devices):
    """They stayed at 0: metrics went along with the parts of a loss, and such a loss has none."""
    x, y = np.random.rand(10, 4), np.random.rand(10, 2)

    def largest(y_true, y_pred):
        return keras.ops.max(keras.ops.square(y_true - y_pred))

    model = keras.Sequential([keras.Input((4,)), layers.Dense(3), layers.Dense(2)])
    model.compile("sgd", largest, metrics=["mae"])
    expected = model.evaluate(x, y, batch_size=8, verbose=0, return_dict=True)
    split = PipelineSplit(model, devices[:2], micro_batches=3)
    found = split.evaluate(x, y, batch_size=8, verbose=0, return_dict=True)
    assert found == pytest.approx(expected, rel=1e-5)
    assert split.train_on_batch(x, y, return_dict=True)["mae"] > 0


@pytest.mark.parametrize("eager", [False, True])
def test_a_layer_is_frozen_without_compiling_again(devices, eager):
    """Gradients of the frozen layer went to the next one, which has weights of the same shapes."""
    x, y = np.random.rand(10, 4), np.random.rand(10, 4)
    trained = []
    for is_split in (False, True):
        keras.utils.set_random_seed(0)
        model = keras.Sequential([keras.Input((4,)), *[layers.Dense(4) for _ in range(3)]])
        cuts = [model.layers[1].name]
        outer = PipelineSplit(model, devices[:2], 2, cuts=cuts) if is_split else model
        outer.compile(keras.optimizers.SGD(0.1), "mse", run_eagerly=eager)
        outer.fit(x, y, batch_size=10, verbose=0)
        model.layers[0].trainable = False
        # Weights are new to the step, which is traced again for them.
        outer.fit(x, y, sample_weight=np.arange(10.0), batch_size=10, verbose=0)
        trained.append(model.get_weights())
    for found, expected in zip(trained[1], trained[0]):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-7)


@pytest.mark.filterwarnings("ignore:Gradients do not exist")
@pytest.mark.parametrize("loss", [{"b": "mse"}, {"a": None, "b": "mse"}])
def test_an_output_without_a_loss(loss, devices):
    def make():
        keras.utils.set_random_seed(0)
        inputs = keras.Input((4,))
        h = layers.Dense(6, activation="tanh")(inputs)
        outputs = {"a": layers.Dense(2, name="a")(h), "b": layers.Dense(3, name="b")(h)}
        return keras.Model(inputs, outputs)

    x, y = np.ones((12, 4), "float32"), {"b": np.zeros((12, 3), "float32")}
    plain, split = make(), PipelineSplit(make(), devices[:2], micro_batches=4)
    histories = []
    for model in (plain, split):
        model.compile("sgd", loss)
        histories.append(model.fit(x, y, batch_size=8, epochs=2, verbose=0).history)
    np.testing.assert_allclose(histories[0]["loss"], histories[1]["loss"], rtol=1e-5)
