"""XLA stage by stage: plain Keras's numbers, every schedule, and a way out where it cannot."""

import logging

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from keras_mgpu import PipelineSplit

EXACT = 1e-5


def data(num=21):
    rng = np.random.default_rng(0)
    return rng.normal(size=(num, 6)).astype("float32"), rng.integers(0, 3, num)


def tokens(num=21):
    rng = np.random.default_rng(1)
    x = rng.integers(1, 20, (num, 7))
    x[np.arange(7)[None] >= rng.integers(1, 8, num)[:, None]] = 0  # Lengths from 1 to 7.
    return x, rng.integers(0, 3, num)


def dense():
    inputs = keras.Input((6,))
    x = first = layers.Dense(8, activation="gelu")(inputs)
    for _ in range(3):
        x = layers.LayerNormalization()(layers.Dense(8, activation="relu")(x) + first)
    return keras.Model(inputs, layers.Dense(3)(x))


def masked():
    inputs = keras.Input((7,), dtype="int32")
    x = layers.Embedding(20, 8, mask_zero=True)(inputs)
    x = layers.MultiHeadAttention(2, 4)(x, x)
    x = layers.GlobalAveragePooling1D()(layers.Dense(8)(x))
    return keras.Model(inputs, layers.Dense(3)(layers.Dense(8, "tanh")(x)))


def compiled(model, **options):
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.01), loss, metrics=["accuracy"], **options)
    return model


def run(trainer, model, x, y, evaluates=True):
    history = trainer.fit(x, y, batch_size=8, epochs=2, shuffle=False, verbose=0).history
    if not evaluates:
        return history, model.get_weights()
    evaluated = trainer.evaluate(x, y, batch_size=8, verbose=0, return_dict=True)
    predicted = trainer.predict(x, batch_size=8, verbose=0)
    return history, model.get_weights(), evaluated, predicted


def said(caplog):
    return [record.message for record in caplog.records if record.name == "keras_mgpu"]


def is_compiled(split):
    """Whether every stage trains with XLA."""
    functions = split._pipeline._functions[True]
    return all(f.compiler is not None and f.compiler.is_on for f in functions)


def assert_same(found, expected):
    for value, reference in zip(keras.tree.flatten(found), keras.tree.flatten(expected)):
        np.testing.assert_allclose(value, reference, rtol=EXACT, atol=EXACT)


@pytest.mark.parametrize(
    ("build", "make", "options"),
    [
        (dense, data, {"schedule": "gpipe"}),
        (dense, data, {"schedule": "1f1b", "recompute": [0]}),
        (dense, data, {"schedule": "interleaved"}),
        (masked, tokens, {"schedule": "zero_bubble"}),
        (masked, tokens, {"schedule": "1f1b"}),
    ],
    ids=lambda value: value.__name__ if callable(value) else str(value.get("schedule")),
)
def test_same_numbers_as_plain_keras(build, make, options, devices, caplog):
    """With a last partial batch; nothing falls back. Evaluation does not see the schedule."""
    x, y = make()
    evaluates = options["schedule"] in ("gpipe", "zero_bubble")  # Once for each model.
    keras.utils.set_random_seed(1)
    model = build()
    weights = model.get_weights()
    expected = run(compiled(model, jit_compile=False), model, x, y, evaluates)
    model.set_weights(weights)
    split = PipelineSplit(model, devices[:2], micro_batches=4, jit_compile=True, **options)
    with caplog.at_level(logging.WARNING, "keras_mgpu"):
        found = run(compiled(split), model, x, y, evaluates)
    assert_same(found, expected)
    assert not said(caplog)
    assert is_compiled(split)


def test_compile_can_ask_for_it(devices):
    split = compiled(PipelineSplit(dense(), devices[:2], micro_batches=2), jit_compile=True)
    x, y = data(8)
    split.fit(x, y, verbose=0)
    assert is_compiled(split)
    split.compile("sgd", split.loss)
    split.fit(x, y, verbose=0)
    assert not is_compiled(split)


def test_a_model_compiled_with_xla_can_be_used_by_itself_after_splitting(devices):
    """XLA would have to read variables of two devices, which it cannot."""
    model = compiled(dense(), jit_compile=True)
    x, y = data(8)
    expected = np.asarray(model(x))
    split = PipelineSplit(model, devices[:2], micro_batches=2)
    np.testing.assert_allclose(model.predict(x, verbose=0), expected, rtol=EXACT, atol=EXACT)
    split.fit(x, y, verbose=0)
    model.fit(x, y, verbose=0)
    model.evaluate(x, y, verbose=0)


def test_what_is_saved_still_asks_for_xla(devices, tmp_path):
    """The file opens unsplit, where XLA works."""
    model = compiled(dense(), jit_compile=True)
    split = PipelineSplit(model, devices[:2], micro_batches=2)
    split.fit(*data(8), verbose=0)
    split.save(tmp_path / "model.keras")
    assert keras.models.load_model(tmp_path / "model.keras").jit_compile is True


def test_what_xla_cannot_compile_falls_back_by_itself(devices, caplog):
    """One line names stage and op; the numbers are those of plain Keras."""

    def through_text(x):
        text = tf.strings.as_string(x)
        return x * 0 + tf.stop_gradient(tf.strings.to_number(text)) + x

    inputs = keras.Input((6,))
    x = layers.Dense(6)(layers.Dense(6, activation="relu")(inputs))
    x = layers.Lambda(through_text, output_shape=(6,))(x)
    model = keras.Model(inputs, layers.Dense(3, name="last")(x))
    weights = model.get_weights()
    x, y = data()
    expected = run(compiled(model, jit_compile=False), model, x, y)
    model.set_weights(weights)
    split = PipelineSplit(model, devices[:2], micro_batches=2, cuts=["dense"], jit_compile=True)
    with caplog.at_level(logging.WARNING, "keras_mgpu"):
        found = run(compiled(split), model, x, y)
    assert_same(found, expected)
    (line,) = said(caplog)
    assert line.startswith("stage 1 ")
    assert "AsString" in line


def test_batches_of_any_size_are_cut_into_few_sizes(devices):
    """XLA compiles anew for every size: a full micro-batch, and what is left over."""
    sizes = set()

    def note(x):
        tf.py_function(lambda n: sizes.add(int(n)), [tf.shape(x)[0]], [])
        return x

    inputs = keras.Input((6,))
    x = layers.Lambda(note, output_shape=(6,))(inputs)
    model = keras.Model(inputs, layers.Dense(3)(layers.Dense(6)(x)))
    split = PipelineSplit(model, devices[:2], micro_batches=4, cuts=["lambda"], jit_compile=True)
    compiled(split)
    x, y = data(40)
    batches = tf.data.Dataset.from_tensor_slices((x, y)).batch(16)  # The last one has 8.
    split.fit(batches, epochs=2, shuffle=False, verbose=0)
    assert sizes == {4}
    for num in (13, 14, 15, 3):
        split.fit(tf.data.Dataset.from_tensors((x[:num], y[:num])), shuffle=False, verbose=0)
    assert sizes <= {1, 2, 3, 4}
