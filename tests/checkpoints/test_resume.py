"""A run that was interrupted and started again ends as one that was not, bit for bit."""

import keras
import numpy as np
import pytest
import runs
import tensorflow as tf

import keras_mgpu as km
from keras_mgpu.checkpoints.store import Store

EPOCH = 4  # Batches in an epoch of 30 samples.


def others():
    """Callbacks with state, in front of the checkpoint and behind it."""
    return (
        [keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.8)],
        [
            keras.callbacks.ReduceLROnPlateau(monitor="loss", patience=1, factor=0.5),
            keras.callbacks.EarlyStopping(monitor="loss", patience=2, restore_best_weights=True),
        ],
    )


def run(directory, kind="arrays", interrupt_after=None, behind=False, save_freq=1, **options):
    """One life of the program."""
    runs.fresh()
    checkpoint = km.DistributedCheckpoint(directory, save_freq=save_freq)
    before, after = others()
    if behind:
        before, after = after, before
    model = options.pop("make_model", runs.make_model)()
    return runs.train(
        model,
        runs.make_data(kind),
        *before,
        checkpoint,
        *after,
        interrupt_after=interrupt_after,
        **options,
    )


@pytest.mark.parametrize("kind", ["weighted arrays", "tf.data", "py_dataset"])
def test_any_data(tmp_path, kind):
    whole = run(tmp_path / "whole", kind)
    for count in (EPOCH + 2, 3, 4):
        assert run(tmp_path / "parts", kind, interrupt_after=count) is None
    runs.assert_same(whole, run(tmp_path / "parts", kind))


def test_any_batch(tmp_path):
    """In a graph, as models usually train; also at the first and last batch of an epoch."""
    options = {"make_model": lambda: runs.make_model(run_eagerly=False)}
    whole = run(tmp_path / "whole", **options)
    for count in (EPOCH, 2, EPOCH - 1, 3):
        assert run(tmp_path / "parts", interrupt_after=count, **options) is None
    runs.assert_same(whole, run(tmp_path / "parts", **options))


def test_validation_and_callbacks_in_another_order(tmp_path):
    x, y = runs.arrays(20, seed=1)
    options = {"behind": True, "validation_data": (x, y)}
    whole = run(tmp_path / "whole", **options)
    for count in (6, 4):
        assert run(tmp_path / "parts", interrupt_after=count, **options) is None
    runs.assert_same(whole, run(tmp_path / "parts", **options))


def test_epochs_that_are_pieces_of_a_stream(tmp_path):
    options = {"kind": "stream", "steps_per_epoch": 3}
    whole = run(tmp_path / "whole", **options)
    for count in (2, 5):
        assert run(tmp_path / "parts", interrupt_after=count, **options) is None
    runs.assert_same(whole, run(tmp_path / "parts", **options))


# Keras says that data of unknown length ran out, at the end of its first epoch.
@pytest.mark.filterwarnings("ignore:Your input ran out of data")
def test_data_of_unknown_length(tmp_path):
    whole = run(tmp_path / "whole", "unknown length")
    for count in (EPOCH + 3, 2):
        assert run(tmp_path / "parts", "unknown length", interrupt_after=count) is None
    runs.assert_same(whole, run(tmp_path / "parts", "unknown length"))


# Keras finds out by asking whether there is one more batch: a checkpoint can come in between.
@pytest.mark.filterwarnings("ignore:Your input ran out of data")
def test_data_of_unknown_length_interrupted_behind_its_last_batch(tmp_path):
    options = {"kind": "unknown length", "validation_data": runs.arrays(20, seed=1)}
    whole = run(tmp_path / "whole", **options)
    assert run(tmp_path / "parts", interrupt_after="validation", **options) is None
    runs.assert_same(whole, run(tmp_path / "parts", **options))


@pytest.mark.parametrize("num_together", [2, 3])
def test_several_steps_in_one_execution(tmp_path, num_together):
    def make_model():
        model = runs.make_model()
        options = {"metrics": ["accuracy"], "steps_per_execution": num_together}
        model.compile("adam", model.loss, **options)
        return model

    whole = run(tmp_path / "whole", make_model=make_model)
    assert run(tmp_path / "parts", make_model=make_model, interrupt_after=3) is None
    runs.assert_same(whole, run(tmp_path / "parts", make_model=make_model))
    steps = [entry.step for entry in Store(str(tmp_path / "whole")).entries()]
    assert steps[-1] == 3 * EPOCH


class Late(keras.Model):
    """Has no variables before it is called."""

    def __init__(self):
        super().__init__()
        self.hidden = keras.layers.Dense(4)
        self.drop = keras.layers.Dropout(0.5)
        self.out = keras.layers.Dense(3)

    def call(self, x, training=None):
        return self.out(self.drop(self.hidden(x), training=training))


def test_a_model_that_is_built_by_its_first_batch(tmp_path):
    def make_model():
        model = Late()
        model.compile("adam", runs.make_model().loss, metrics=["accuracy"])
        return model

    whole = run(tmp_path / "whole", make_model=make_model)
    assert run(tmp_path / "parts", make_model=make_model, interrupt_after=6) is None
    runs.assert_same(whole, run(tmp_path / "parts", make_model=make_model))


# With micro-batches, normalization sees fewer samples: a warning says so.
@pytest.mark.filterwarnings("ignore:Batch normalization uses the mean")
def test_a_split_model(tmp_path, devices):
    def make_model():
        model = runs.make_model()
        split = km.PipelineSplit(model, devices=devices[:2], micro_batches=2)
        split.compile("adam", model.loss, metrics=["accuracy"])
        return split

    whole = run(tmp_path / "whole", make_model=make_model)
    assert run(tmp_path / "parts", make_model=make_model, interrupt_after=6) is None
    runs.assert_same(whole, run(tmp_path / "parts", make_model=make_model))


@pytest.mark.parametrize(
    "optimizer",
    [
        lambda: keras.optimizers.SGD(0.05, momentum=0.9, use_ema=True, ema_momentum=0.9),
        lambda: keras.optimizers.Adam(1e-2, gradient_accumulation_steps=2),
        lambda: keras.optimizers.LossScaleOptimizer(
            keras.optimizers.Adam(1e-2), dynamic_growth_steps=5
        ),
        lambda: keras.optimizers.AdamW(keras.optimizers.schedules.CosineDecay(1e-2, 40)),
    ],
    ids=["ema", "accumulation", "loss scale", "schedule"],
)
def test_optimizers(tmp_path, optimizer):
    def make_model():
        return runs.make_model(optimizer())

    def one(directory, interrupt_after=None):
        runs.fresh()
        callback = km.DistributedCheckpoint(directory, save_freq=1)
        data = runs.make_data()
        return runs.train(make_model(), data, callback, interrupt_after=interrupt_after)

    whole = one(tmp_path / "whole")
    assert one(tmp_path / "parts", 6) is None
    runs.assert_same(whole, one(tmp_path / "parts"))


def test_a_run_that_is_complete_is_left_alone(tmp_path):
    first = run(tmp_path)
    runs.assert_same(first, run(tmp_path))


def test_more_epochs_go_on_from_the_end(tmp_path):
    def one(directory, epochs):
        runs.fresh()
        callback = km.DistributedCheckpoint(directory)
        return runs.train(runs.make_model(), runs.make_data(), callback, epochs=epochs)

    whole = one(tmp_path / "whole", 3)
    one(tmp_path / "parts", 1)
    runs.assert_same(whole, one(tmp_path / "parts", 3))


def test_another_epoch_to_begin_at_is_passed_over_and_that_is_said(tmp_path, caplog):
    def one(epochs, initial_epoch):
        runs.fresh()
        callback = km.DistributedCheckpoint(tmp_path)
        return runs.train(
            runs.make_model(),
            runs.make_data(),
            callback,
            epochs=epochs,
            initial_epoch=initial_epoch,
        )

    one(1, 0)
    one(2, 1)
    assert "initial_epoch" not in caplog.text
    assert one(4, 3)["epochs"] == [0, 1, 2, 3]
    assert "`initial_epoch=3` is passed over" in caplog.text


def test_plain_arrays_go_on_at_the_next_epoch_and_that_is_said_once(tmp_path, caplog):
    x, y = runs.arrays()

    def one(interrupt_after=None):
        callback = km.DistributedCheckpoint(tmp_path, save_freq=1)
        seen = []
        record = keras.callbacks.LambdaCallback(
            on_epoch_begin=lambda epoch, logs: seen.append(epoch)
        )
        runs.train(
            runs.make_model(),
            x,
            callback,
            record,
            interrupt_after=interrupt_after,
            y=y,
            batch_size=8,
        )
        return seen

    assert one(interrupt_after=EPOCH + 3) == [0, 1]
    assert one() == [2]
    said = [r.getMessage() for r in caplog.records if "does not know its place" in r.getMessage()]
    assert len(said) == 1
    assert "keras_mgpu.resumable(x, y, batch_size=...)" in said[0]


def test_resume_can_be_turned_off(tmp_path):
    assert run(tmp_path, interrupt_after=6) is None
    runs.fresh()
    model = runs.make_model()
    callback = km.DistributedCheckpoint(tmp_path, resume=False)
    history = model.fit(runs.make_data(), epochs=1, callbacks=[callback], verbose=0, shuffle=False)
    assert history.epoch == [0]
    # The newest is the one saved last, though an older run had got further.
    assert km.restore_checkpoint(tmp_path, model).step == EPOCH


def test_a_callback_of_the_users_own_goes_on_counting(tmp_path):
    class Counter(keras.callbacks.Callback):
        def __init__(self, limit):
            super().__init__()
            self.count = 0
            self.limit = limit  # A setting: it is not state, and the new one counts.
            self.seen = []
            self.best = np.zeros(2)
            self.left = limit  # A setting that counts down: so does this.

        def on_train_batch_end(self, batch, logs=None):
            self.count += 1
            self.left -= 1

        def on_epoch_end(self, epoch, logs=None):
            self.seen.append({"epoch": epoch, "nan": float("nan")})
            self.by_number = {epoch: {epoch, "text"}}
            self.best = self.best + 1

    def one(counter, interrupt_after=None):
        runs.fresh()
        callback = km.DistributedCheckpoint(tmp_path, save_freq=1)
        runs.train(
            runs.make_model(),
            runs.make_data(),
            callback,
            counter,
            epochs=2,
            interrupt_after=interrupt_after,
        )
        return counter

    one(Counter(limit=1000), interrupt_after=6)
    later = Counter(limit=7)
    one(later)
    assert later.count == 2 * EPOCH
    assert later.limit == 7
    assert later.left > 7 - 2 * EPOCH
    assert [each["epoch"] for each in later.seen] == [0, 1]
    assert np.isnan(later.seen[0]["nan"])
    assert later.by_number == {1: {1, "text"}}
    np.testing.assert_array_equal(later.best, [2, 2])


def test_the_order_depends_on_seed_and_pass_alone():
    x = np.arange(20)

    def batches(data):
        return [batch.numpy().tolist() for batch in data]

    def samples(batches):
        return [sample for batch in batches for sample in batch]

    data = km.resumable(x, batch_size=6, seed=1)
    first, second = batches(data), batches(data)
    assert sorted(samples(first)) == list(range(20))
    assert first != second
    again = km.resumable(x, batch_size=6, seed=1)
    assert batches(again) == first
    assert batches(km.resumable(x, batch_size=6, seed=2)) != first
    in_order = km.resumable(x, batch_size=6, shuffle=False)
    assert samples(batches(in_order)) == list(range(20))


def test_structures_and_types_come_through():
    x = {"a": np.zeros((5, 2), "float64"), "b": np.array([b"u", b"v", b"w", b"x", b"y"])}
    data = km.resumable(x, np.arange(5), batch_size=2, shuffle=False)
    (first, y), *_, (last, _) = list(data)
    assert first["a"].dtype == tf.float32  # As `fit` takes arrays.
    assert first["b"].numpy().tolist() == [b"u", b"v"]
    assert y.numpy().tolist() == [0, 1]
    assert last["a"].shape == (1, 2)
    assert int(data.cardinality()) == 3


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((np.zeros(3), np.zeros(4)), {}, r"same number of samples. Received: \[3, 4\]"),
        ((np.zeros(3),), {"batch_size": 0}, "`batch_size` must be"),
        ((tf.data.Dataset.range(3),), {"batch_size": 2}, "`batch_size` belongs to arrays"),
        ((runs.PyData(), np.zeros(3)), {}, "`y` belongs to arrays; a PyData has its own"),
    ],
)
def test_bad_data(arguments, options, message):
    with pytest.raises(ValueError, match=message):
        km.resumable(*arguments, **options)


def interrupted(tmp_path, make_model, make_data, interrupt_after=6, callbacks=list, **options):
    """The same run whole, and in two lives."""

    def one(directory, after=None):
        runs.fresh()
        checkpoint = km.DistributedCheckpoint(directory, save_freq=1)
        arguments = {"interrupt_after": after, **options}
        return runs.train(make_model(), make_data(), *callbacks(), checkpoint, **arguments)

    whole = one(tmp_path / "whole")
    assert one(tmp_path / "parts", interrupt_after) is None
    runs.assert_same(whole, one(tmp_path / "parts"))
    return whole


def test_early_stopping_stops_when_it_would_have(tmp_path):
    """Keras turns the sign of `min_delta` in the first epoch of a run."""

    def callbacks():
        return [keras.callbacks.EarlyStopping("loss", patience=2, min_delta=10)]

    whole = interrupted(tmp_path, runs.make_model, runs.make_data, callbacks=callbacks, epochs=6)
    assert whole["epochs"] == [0, 1, 2]


def test_the_state_of_a_recurrent_layer(tmp_path):
    def make_model():
        model = keras.Sequential(
            [
                keras.Input((2, 4), batch_size=8),
                keras.layers.SimpleRNN(3, stateful=True),
                keras.layers.Dense(1),
            ]
        )
        model.compile("sgd", "mse", run_eagerly=True)
        return model

    def make_data():
        x = np.random.default_rng(0).standard_normal((32, 2, 4)).astype("float32")
        return km.resumable(x, x[:, 0, :1], batch_size=8, seed=1)

    interrupted(tmp_path, make_model, make_data)


def test_class_weights(tmp_path):
    """`fit` maps the data then, and no longer knows its length."""
    import warnings

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Your input ran out of data")
        interrupted(
            tmp_path,
            runs.make_model,
            runs.make_data,
            interrupt_after=2 * EPOCH + 1,
            class_weight={0: 1.0, 1: 3.0, 2: 0.5},
        )


def test_variables_without_names(tmp_path):
    """Nadam has one, which Keras numbers by process."""

    def make_model():
        keras.Variable(0.0)
        return runs.make_model(keras.optimizers.Nadam())

    interrupted(tmp_path, make_model, runs.make_data)
    keras.Variable(0.0)
    assert km.restore_checkpoint(tmp_path / "parts", make_model()).step == 12


class TwoOptimizers(keras.Model):
    """As people write adversarial models: two parts, two optimizers, never called itself."""

    def __init__(self):
        super().__init__()
        self.parts = [keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)]) for _ in "ab"]

    def compile(self, first, second):
        super().compile(run_eagerly=True)
        self.first, self.second = first, second
        for optimizer, part in zip((first, second), self.parts):
            optimizer.build(part.trainable_variables)

    def train_step(self, data):
        x, _ = data
        for optimizer, part in zip((self.first, self.second), self.parts):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(part(x) - 1.0))
            weights = part.trainable_variables
            optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))
        return {"loss": loss}


def test_several_optimizers_in_one_model(tmp_path):
    def one(directory, after=None):
        runs.fresh()
        model = TwoOptimizers()
        model.compile(keras.optimizers.Adam(0.1), keras.optimizers.SGD(0.1, momentum=0.9))
        checkpoint = km.DistributedCheckpoint(directory, save_freq=1)
        try:
            callbacks = [checkpoint, runs.InterruptAfter(after or 10**9)]
            model.fit(runs.make_data(), epochs=3, callbacks=callbacks, verbose=0, shuffle=False)
        except runs.Interrupted:
            return None
        both = [*model.first.variables, *model.second.variables]
        return [v.numpy() for v in [*model.variables, *both]]

    whole = one(tmp_path / "whole")
    assert one(tmp_path / "parts", 6) is None
    for a, b in zip(whole, one(tmp_path / "parts")):
        np.testing.assert_array_equal(a, b)
