"""How often a step copies, and how many kernels it launches, beside plain Keras on one GPU.

The counts are the same in every run. On GPUs each copy to the host is a wait, and each small one
costs as much as a kernel.
"""

import functools
from dataclasses import dataclass

import keras
import numpy as np
import pytest
import simgpu
import tensorflow as tf
from keras import layers

import keras_mgpu as km

BATCH_SIZE, MICRO_BATCHES = 32, 4
STEPS = 4
RANDOM = np.random.default_rng(0)


def dense():
    stack = [keras.Input((32,))]
    for block in range(4):
        stack += [layers.Dense(64, activation="gelu")]
        stack += [layers.LayerNormalization(name=f"norm_{block}")]
    x = RANDOM.normal(size=(BATCH_SIZE, 32)).astype("float32")
    return keras.Sequential([*stack, layers.Dense(10)]), x


def transformer():
    tokens = keras.Input((16,), dtype="int32")
    h = layers.Embedding(100, 32, mask_zero=True)(tokens)
    for block in range(2):
        h = layers.Add()([h, layers.MultiHeadAttention(4, 8)(h, h)])
        h = layers.LayerNormalization(name=f"norm_{block}")(h)
        mlp = layers.Dense(32)(layers.Dense(128, activation="gelu")(h))
        h = layers.LayerNormalization(name=f"out_{block}")(layers.Add()([h, mlp]))
    x = RANDOM.integers(1, 100, (BATCH_SIZE, 16))
    x[np.arange(16)[None] >= RANDOM.integers(4, 17, len(x))[:, None]] = 0
    outputs = layers.Dense(10)(layers.GlobalAveragePooling1D()(h))
    return keras.Model(tokens, outputs), x.astype("int32")


def conv():
    stack = [keras.Input((16, 16, 3))]
    for block, filters in enumerate((8, 16, 16, 32)):
        conv_2d = layers.Conv2D(filters, 3, padding="same", activation="relu", name=f"conv_{block}")
        stack.append(conv_2d)
    x = RANDOM.normal(size=(BATCH_SIZE, 16, 16, 3)).astype("float32")
    return keras.Sequential([*stack, layers.GlobalAveragePooling2D(), layers.Dense(10)]), x


@dataclass
class Counts:
    """Per step, summed over devices."""

    to_devices: float
    to_host: float
    between_devices: float
    kernels: float


def count(model, x, batch_size=BATCH_SIZE):
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(1e-3), loss, metrics=["accuracy"], jit_compile=False)
    with tf.device("/CPU:0"):
        y = RANDOM.integers(0, 10, BATCH_SIZE)
        data = iter(tf.data.Dataset.from_tensor_slices((x, y)).repeat().batch(batch_size))
    model.make_train_function()
    for steps in (2, STEPS):  # The first ones trace.
        simgpu.reset()
        for _ in range(steps):
            model.train_function(data)
        tf.test.experimental.sync_devices()
    return Counts(*(total / STEPS for total in totals()))


def totals():
    devices = simgpu.stats()
    assert not any(device["misplaced"] for device in devices)
    return (
        sum(device["h2d"]["n"] for device in devices),
        sum(device["d2h"]["n"] for device in devices),
        sum(
            traffic["n"]
            for device in devices
            for other, traffic in device["d2d"].items()
            if other != device["device"]
        ),
        sum(number for device in devices for number, _ in device["kernels"].values()),
    )


@functools.cache
def plain(make, batch_size=BATCH_SIZE):
    with tf.device("/GPU:0"):
        return count(*make(), batch_size=batch_size)


def split(make, devices, **options):
    with tf.device("/CPU:0"):
        model, x = make()
    return count(km.PipelineSplit(model, devices, micro_batches=MICRO_BATCHES, **options), x)


@pytest.mark.parametrize(
    ("make", "cuts"),
    [
        (dense, ["norm_1"]),
        (dense, ["norm_0", "norm_1", "norm_2"]),
        (transformer, ["out_0"]),
        (conv, ["conv_0", "conv_2"]),
    ],
)
def test_a_step_copies_what_crosses_stages_and_little_else(make, cuts, devices):
    num_stages = len(cuts) + 1
    ours, theirs = split(make, devices[:num_stages], cuts=cuts), plain(make)
    assert ours.to_host <= theirs.to_host
    assert ours.to_devices <= theirs.to_devices + 4 * num_stages
    # An activation and its gradient per micro-batch and cut, and the optimizer's numbers.
    crossings = num_stages - 1
    assert ours.between_devices == 2 * MICRO_BATCHES * crossings + crossings


@pytest.mark.parametrize("make", [dense, transformer, conv])
def test_a_step_launches_about_as_many_kernels_as_its_micro_batches_need(make, devices):
    """Plain Keras updates the weights with each of them: all updates but one are taken out."""
    ours, theirs = split(make, devices[:2]), plain(make, BATCH_SIZE // MICRO_BATCHES)
    superfluous = (MICRO_BATCHES - 1) * kernels_of_update(make)
    assert ours.kernels <= 1.15 * (MICRO_BATCHES * theirs.kernels - superfluous)


def kernels_of_update(make):
    with tf.device("/GPU:0"):
        model, _ = make()
        optimizer = keras.optimizers.Adam(1e-3)
        optimizer.build(model.trainable_variables)
        gradients = [tf.ones(variable.shape) for variable in model.trainable_variables]
        update = tf.function(optimizer.apply, autograph=False)
        update(gradients)
        simgpu.reset()
        update(gradients)
    return totals()[-1]


@pytest.mark.parametrize("schedule", ["gpipe", "zero_bubble"])
def test_other_schedules_copy_no_more(schedule, devices):
    ours, theirs = split(dense, devices[:2], schedule=schedule), plain(dense)
    assert ours.to_host <= theirs.to_host
    assert ours.between_devices == 2 * MICRO_BATCHES + 1


def language_model():
    """Token ids are used in the first stage and in the last, segment ids in the middle."""
    tokens = keras.Input((16,), dtype="int32", name="tokens")
    segments = keras.Input((16,), dtype="int32", name="segments")
    embed = layers.ReversibleEmbedding(50, 16)
    h = embed(tokens)
    h = h + layers.Dense(16, activation="gelu", name="first")(h)
    h = h + layers.Embedding(3, 16)(segments)
    h = h + layers.Dense(16, activation="gelu", name="second")(h)
    return keras.Model({"tokens": tokens, "segments": segments}, embed(h, reverse=True))


def test_integers_that_cross_stages_do_not_visit_the_host(devices):
    """Neither ids nor the argmax over 50 words, which Keras's accuracy takes."""
    with tf.device("/CPU:0"):
        model = language_model()
    model = km.PipelineSplit(
        model, devices[:3], micro_batches=MICRO_BATCHES, cuts=["first", "second"]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, metrics=["accuracy"])
    x = {name: RANDOM.integers(0, 3, (32, 16)).astype("int32") for name in ("tokens", "segments")}
    y = RANDOM.integers(0, 50, (32, 16))
    model.fit(x, y, batch_size=32, verbose=0)
    simgpu.reset()
    model.train_function(iter([(x, y)]))
    sizes = [size for device in simgpu.stats() for size in device["d2h"]["sizes"]]
    assert max(sizes, default=0) <= 8  # Single numbers: the loss and the accuracy.


def test_made_integers_cross_stages_on_the_device(devices):
    """Ids that a stage computes, for a stage that looks them up."""
    inputs = keras.Input((6,))
    ids = keras.ops.mod(keras.ops.cast(3 * inputs, "int32"), 5)
    h = layers.Dense(4, name="first")(inputs)
    h = layers.Embedding(5, 4)(ids) + keras.ops.expand_dims(h, 1)
    model = keras.Model(inputs, layers.Dense(2)(layers.Flatten()(h)))
    model = km.PipelineSplit(model, devices[:2], micro_batches=4, cuts=["first"])
    model.compile("sgd", "mse")
    x, y = RANDOM.normal(size=(16, 6)).astype("float32"), np.zeros((16, 2), "float32")
    assert model.verify(x, y).max_absolute < 1e-5
    model.fit(x, y, batch_size=16, verbose=0)
    simgpu.reset()
    model.train_function(iter([(x, y)]))
    assert max(s for d in simgpu.stats() for s in d["d2h"]["sizes"] or [0]) <= 8


class Rearranges(layers.Layer):
    """Puts a first word before all others, counts from the end, and takes some words away."""

    def call(self, tokens):
        first = keras.ops.full_like(tokens[:, :1], 3)
        tokens = keras.ops.concatenate([first, tokens, 9 - tokens], axis=1)
        tokens = keras.ops.transpose(keras.ops.flip(tokens, axis=1))
        tokens = keras.ops.transpose(keras.ops.maximum(tokens, 1))
        return keras.ops.where(tokens > 8, 2 * tokens - tokens, tokens)[:, 2:]

    def compute_output_shape(self, input_shape):
        return (*input_shape[:-1], 2 * input_shape[-1] - 1)


def test_arithmetic_on_integers_is_that_of_plain_keras(devices):
    tokens = keras.Input((6,), dtype="int32")
    ids = Rearranges(dtype="int32", name="rearranges")(tokens)
    h = layers.Embedding(10, 4, name="table")(ids)
    model = keras.Model(tokens, layers.Dense(2)(layers.Flatten()(h)))
    x, y = RANDOM.integers(0, 10, (16, 6)).astype("int32"), np.zeros((16, 2), "float32")
    expected = model(x).numpy()
    split_model = km.PipelineSplit(model, devices[:2], micro_batches=4, cuts=["rearranges"])
    split_model.compile("sgd", "mse")
    np.testing.assert_allclose(split_model.predict(x, verbose=0), expected, atol=1e-6)
    assert split_model.verify(x, y).max_absolute < 1e-5
