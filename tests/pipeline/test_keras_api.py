"""Everything a Keras user does with a model: data of every kind, callbacks, saving, options."""

import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from keras_mgpu import PipelineSplit
from keras_mgpu.system.devices import normalize

X = np.random.default_rng(0).normal(size=(40, 6)).astype("float32")
Y = np.random.default_rng(1).integers(0, 3, 40)


def make(seed=0):
    keras.backend.clear_session()
    keras.utils.set_random_seed(seed)
    return keras.Sequential(
        [
            keras.Input((6,)),
            layers.Dense(8, activation="tanh"),
            layers.Dense(8, activation="tanh"),
            layers.Dense(3, activation="softmax"),
        ]
    )


def compiled(model, **options):
    settings = {"optimizer": keras.optimizers.Adam(0.01), "metrics": ["accuracy"], **options}
    model.compile(loss="sparse_categorical_crossentropy", **settings)
    return model


def plain(**options):
    return compiled(make(), **options)


def split(devices, num_stages=2, micro_batches=4, **options):
    return compiled(PipelineSplit(make(), devices[:num_stages], micro_batches), **options)


def assert_same_history(run, expected):
    assert run.history.keys() == expected.history.keys()
    for name in expected.history:
        np.testing.assert_allclose(run.history[name], expected.history[name], rtol=1e-5)


def assert_same_weights(model, expected, rtol=1e-5):
    for value, reference in zip(model.get_weights(), expected.get_weights()):
        np.testing.assert_allclose(value, reference, rtol=rtol, atol=1e-6)


class Batches(keras.utils.PyDataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return X[index * 10 : index * 10 + 10], Y[index * 10 : index * 10 + 10]


def generator():
    while True:
        yield from (Batches()[index] for index in range(4))


def dataset():
    return tf.data.Dataset.from_tensor_slices((X, Y)).batch(10)


SOURCES = {
    "arrays": lambda: {"x": X, "y": Y, "batch_size": 10, "shuffle": False},
    "dataset": lambda: {"x": dataset(), "shuffle": False},
    "fixed_size": lambda: {
        "x": tf.data.Dataset.from_tensor_slices((X, Y)).batch(10, drop_remainder=True),
        "shuffle": False,
    },
    "generator": lambda: {"x": generator(), "steps_per_epoch": 4, "shuffle": False},
    "py_dataset": lambda: {"x": Batches(workers=1), "shuffle": False},
    "validation": lambda: {
        "x": X,
        "y": Y,
        "batch_size": 10,
        "shuffle": False,
        "validation_data": (X[:13], Y[:13]),
    },
    "validation_split": lambda: {
        "x": X,
        "y": Y,
        "batch_size": 10,
        "shuffle": False,
        "validation_split": 0.3,
    },
}


@pytest.mark.parametrize("source", SOURCES)
def test_fit_takes_every_kind_of_data(devices, source):
    expected = plain()
    history = expected.fit(**SOURCES[source](), epochs=2, verbose=0)
    model = split(devices)
    assert_same_history(model.fit(**SOURCES[source](), epochs=2, verbose=0), history)
    assert_same_weights(model, expected)


@pytest.mark.parametrize(
    "options", [{"run_eagerly": True}, {"steps_per_execution": 3}, {"auto_scale_loss": False}]
)
def test_compile_options(devices, options):
    expected, model = plain(**options), split(devices, **options)
    fit = {"x": X, "y": Y, "batch_size": 10, "shuffle": False, "epochs": 2, "verbose": 0}
    history = expected.fit(**fit)
    assert_same_history(model.fit(**fit), history)
    assert_same_weights(model, expected)
    np.testing.assert_allclose(
        model.predict(X, batch_size=16, verbose=0),
        expected.predict(X, batch_size=16, verbose=0),
        rtol=1e-5,
    )


def test_compiling_the_model_inside(devices):
    """It is the same model, and whoever holds it may compile it."""
    expected, model = plain(), split(devices)
    fit = {"x": X, "y": Y, "batch_size": 10, "shuffle": False, "epochs": 2, "verbose": 0}
    for reduction in ("sum", "sum_over_batch_size"):
        model.evaluate(X, Y, verbose=0)
        loss = keras.losses.SparseCategoricalCrossentropy(reduction=reduction)
        for each in (expected, model.model):
            each.compile(keras.optimizers.SGD(0.01), loss, metrics=["accuracy"])
        assert_same_history(model.fit(**fit), expected.fit(**fit))
        assert_same_weights(model, expected)
    assert model.optimizer is model.model.optimizer


def test_compiling_only_the_model_inside(devices):
    expected, model = plain(), PipelineSplit(make(), devices[:2], micro_batches=4)
    compiled(model.model)
    fit = {"x": X, "y": Y, "batch_size": 10, "shuffle": False, "verbose": 0}
    assert_same_history(model.fit(**fit), expected.fit(**fit))


def test_on_batch_methods(devices):
    expected, model = plain(), split(devices)
    for _ in range(3):
        np.testing.assert_allclose(
            model.train_on_batch(X[:9], Y[:9]), expected.train_on_batch(X[:9], Y[:9]), rtol=1e-5
        )
    weights = {0: 1.0, 1: 0.1, 2: 2.0}
    np.testing.assert_allclose(
        model.train_on_batch(X[:9], Y[:9], class_weight=weights),
        expected.train_on_batch(X[:9], Y[:9], class_weight=weights),
        rtol=1e-5,
    )
    np.testing.assert_allclose(
        model.test_on_batch(X[:5], Y[:5], sample_weight=np.arange(5.0)),
        expected.test_on_batch(X[:5], Y[:5], sample_weight=np.arange(5.0)),
        rtol=1e-5,
    )
    np.testing.assert_allclose(
        model.predict_on_batch(X[:2]), expected.predict_on_batch(X[:2]), rtol=1e-5
    )


def test_calling_the_wrapper_is_calling_the_model(devices):
    model = split(devices, num_stages=3)
    np.testing.assert_allclose(model(X), model.model(X), rtol=1e-6)


def test_a_step_is_traced_once(devices, monkeypatch):
    """TensorFlow traces once more whatever made a variable, as metrics do at their first batch."""
    steps = []
    train_step = PipelineSplit.train_step
    monkeypatch.setattr(
        PipelineSplit, "train_step", lambda self, data: steps.append(1) or train_step(self, data)
    )
    inputs = keras.Input((4,))
    hidden = layers.Dense(4)(inputs)
    model = keras.Model(inputs, [layers.Dense(2)(hidden), layers.Dense(1)(hidden)])
    split = PipelineSplit(model, devices[:2], micro_batches=2)
    split.compile("adam", ["mse", "mae"], metrics=[["mae", "cosine_similarity"], ["mape"]])
    x = np.ones((8, 4), "float32")
    split.fit(x, [x[:, :2], x[:, :1]], batch_size=4, verbose=0)
    assert len(steps) == 1


def test_one_trace_for_full_batches_and_one_for_all_others(devices):
    traces = []

    class Traced(layers.Layer):
        def call(self, inputs):
            traces.append(inputs.shape)
            return inputs

    model = keras.Sequential([keras.Input((6,)), layers.Dense(4), Traced(), layers.Dense(2)])
    wrapped = PipelineSplit(model, devices[:2], micro_batches=4)
    traces.clear()
    wrapped.compile("sgd", "mse")
    wrapped.fit(X[:32], X[:32, :2], batch_size=16, epochs=2, verbose=0)
    assert traces == [(4, 4)]
    wrapped.fit(X[:30], X[:30, :2], batch_size=16, epochs=2, verbose=0)
    wrapped.fit(X[:7], X[:7, :2], batch_size=3, verbose=0)
    wrapped.fit(X[:32], X[:32, :2], batch_size=16, verbose=0)
    wrapped.train_on_batch(X[:9], X[:9, :2])
    assert [tuple(shape) for shape in traces] == [(4, 4), (None, 4)]
    traces.clear()
    for _ in range(2):
        wrapped.evaluate(X[:32], X[:32, :2], batch_size=16, verbose=0)
        wrapped.evaluate(X[:30], X[:30, :2], batch_size=16, verbose=0)
        wrapped.predict(X[:16], verbose=0)
        wrapped.predict(X[:3], verbose=0)
    assert [tuple(shape) for shape in traces] == [(4, 4), (None, 4)]  # For inference.


class TestPlacement:
    def test_variables_and_slots_live_with_their_stage(self, devices):
        model = split(devices, num_stages=3)
        model.fit(X, Y, epochs=1, verbose=0)
        places = {}
        for stage in model.stages:
            for variable in stage.variables:
                assert variable.value.device.endswith(stage.device[1:])
                places[variable.path.replace("/", "_")] = stage.device[1:]
        slots = [v for v in model.optimizer.variables if len(v.shape)]
        assert len(slots) == 2 * len(places)
        for slot in slots:
            owner = next(path for path in places if path in slot.path)
            assert slot.value.device.endswith(places[owner]), slot.path

    @pytest.mark.parametrize(
        "optimizer",
        [
            "adafactor",
            "lion",
            "nadam",
            "rmsprop",
            "ftrl",
            keras.optimizers.SGD(0.1, momentum=0.9, use_ema=True, gradient_accumulation_steps=2),
        ],
    )
    def test_slots_of_any_optimizer(self, devices, optimizer):
        wrapped = PipelineSplit(make(), devices[1:3], micro_batches=2)
        wrapped.compile(optimizer, "sparse_categorical_crossentropy")
        wrapped.fit(X, Y, verbose=0)
        slots = [v for v in wrapped.optimizer.variables if len(v.shape)]
        assert slots
        assert {normalize(slot.value.device) for slot in slots} == set(devices[1:3])

    def test_slots_are_updated_where_they_lie(self, devices):
        """In the traced step, the optimizer's arithmetic names the variables' devices."""
        wrapped = PipelineSplit(make(), devices[1:3], micro_batches=2)
        compiled(wrapped, optimizer=keras.optimizers.AdamW(0.01, clipnorm=1.0))
        wrapped.make_train_function()
        step = tf.function(wrapped.train_step, autograph=False)
        graph = step.get_concrete_function((tf.constant(X), tf.constant(Y))).graph
        arithmetic = [
            op
            for op in graph.get_operations()
            if op.type in ("Mul", "Sub", "AddV2", "RealDiv", "Sqrt")
            if "stage_" not in op.name and op.outputs[0].shape.rank != 0
        ]
        assert len(arithmetic) > 20
        assert {normalize(op.device) for op in arithmetic} == set(devices[1:3])

    def test_a_model_built_on_the_host_leaves_it(self, devices):
        with tf.device("/CPU:0"):
            model = make()
        PipelineSplit(model, devices[2:])
        assert {normalize(v.value.device) for v in model.variables} == set(devices[2:])

    def test_a_function_traced_before_the_split_is_not_used_behind_it(self, devices):
        model = compiled(make())
        before = model.predict(X, verbose=0)
        wrapped = compiled(PipelineSplit(model, devices[1:3], micro_batches=2))
        wrapped.fit(X, Y, epochs=3, verbose=0)
        after = model.predict(X, verbose=0)
        assert not np.allclose(after, before)
        np.testing.assert_allclose(after, wrapped.predict(X, verbose=0), rtol=1e-5)


class TestCallbacks:
    def test_early_stopping_restores_best_weights(self, devices):
        def run(model):
            stop = keras.callbacks.EarlyStopping("loss", patience=1, restore_best_weights=True)
            spoil = keras.callbacks.LearningRateScheduler(lambda epoch: 0.01 if epoch < 2 else 0.5)
            fit = {"batch_size": 10, "shuffle": False, "epochs": 8, "verbose": 0}
            return model.fit(X, Y, **fit, callbacks=[spoil, stop])

        expected, model = plain(), split(devices)
        assert_same_history(run(model), run(expected))
        assert_same_weights(model, expected)

    def test_reduce_learning_rate_on_plateau(self, devices):
        model = split(devices, optimizer=keras.optimizers.SGD(1.0))
        plateau = keras.callbacks.ReduceLROnPlateau("loss", factor=0.5, patience=1, min_delta=10)
        model.fit(X, Y, epochs=4, verbose=0, callbacks=[plateau])
        assert float(model.optimizer.learning_rate) < 1.0

    def test_model_checkpoint_writes_the_plain_model(self, devices, tmp_path):
        model = split(devices)
        path = tmp_path / "best.keras"
        model.fit(X, Y, epochs=2, verbose=0, callbacks=[keras.callbacks.ModelCheckpoint(path)])
        loaded = keras.models.load_model(path)
        assert type(loaded) is keras.Sequential
        assert_same_weights(loaded, model)

    def test_model_checkpoint_of_weights(self, devices, tmp_path):
        model = split(devices)
        path = tmp_path / "best.weights.h5"
        callback = keras.callbacks.ModelCheckpoint(path, save_weights_only=True)
        model.fit(X, Y, epochs=1, verbose=0, callbacks=[callback])
        fresh = plain()
        fresh.optimizer.build(fresh.trainable_variables)
        fresh.load_weights(path)
        assert_same_weights(fresh, model)

    def test_backup_and_restore_goes_on_after_an_interruption(self, devices, tmp_path):
        class Interrupt(keras.callbacks.Callback):
            def on_epoch_begin(self, epoch, logs=None):
                if epoch == 2:
                    raise KeyboardInterrupt

        fit = {"x": X, "y": Y, "batch_size": 10, "shuffle": False, "epochs": 4, "verbose": 0}
        expected = plain()
        expected.fit(**fit)

        def backup():
            return keras.callbacks.BackupAndRestore(tmp_path / "backup")

        with pytest.raises(KeyboardInterrupt):
            split(devices).fit(**fit, callbacks=[backup(), Interrupt()])
        model = split(devices, num_stages=3)
        history = model.fit(**fit, callbacks=[backup()])
        assert history.epoch == [2, 3]
        assert_same_weights(model, expected)

    def test_tensorboard(self, devices, tmp_path):
        callback = keras.callbacks.TensorBoard(tmp_path, histogram_freq=1, update_freq="batch")
        split(devices).fit(X, Y, epochs=2, verbose=0, callbacks=[callback], validation_split=0.2)
        assert list(tmp_path.glob("train/*tfevents*"))
        assert list(tmp_path.glob("validation/*tfevents*"))

    def test_ema_weights_are_swapped(self, devices, tmp_path):
        def run(model):
            swap = keras.callbacks.SwapEMAWeights()
            fit = {"batch_size": 10, "shuffle": False, "epochs": 2, "verbose": 0}
            return model.fit(X, Y, **fit, callbacks=[swap], validation_data=(X, Y))

        def optimizer():
            return keras.optimizers.SGD(0.5, use_ema=True, ema_momentum=0.9)

        expected = run(plain(optimizer=optimizer()))
        assert_same_history(run(split(devices, optimizer=optimizer())), expected)

    def test_terminate_on_nan_and_csv(self, devices, tmp_path):
        log = tmp_path / "log.csv"
        callbacks = [keras.callbacks.TerminateOnNaN(), keras.callbacks.CSVLogger(log)]
        bad = np.where(np.arange(40)[:, None] == 3, np.nan, X)
        history = split(devices).fit(bad, Y, epochs=5, verbose=0, callbacks=callbacks)
        assert len(history.epoch) < 5
        assert "accuracy" in log.read_text()


class TestSaving:
    def test_file_opens_without_this_package_and_trains_on(self, devices, tmp_path):
        fit = {"batch_size": 10, "shuffle": False, "epochs": 2, "verbose": 0}
        model = split(devices, num_stages=3)
        model.fit(X, Y, **fit)
        model.save(tmp_path / "model.keras")
        np.savez(tmp_path / "data.npz", x=X, y=Y)
        script = f"""
import sys
sys.modules["keras_mgpu"] = None   # Importing it fails from here on.
import keras, numpy as np
data = np.load(r"{tmp_path / "data.npz"}")
model = keras.models.load_model(r"{tmp_path / "model.keras"}")
model.fit(data["x"], data["y"], batch_size=10, shuffle=False, epochs=2, verbose=0)
slots = [v.numpy() for v in model.optimizer.variables]
np.savez(r"{tmp_path / "trained.npz"}", *model.get_weights(), *slots)
"""
        subprocess.run([sys.executable, "-c", script], check=True, capture_output=True)
        model.fit(X, Y, **fit)
        expected = [*model.get_weights(), *[v.numpy() for v in model.optimizer.variables]]
        found = np.load(tmp_path / "trained.npz")
        assert len(found.files) == len(expected)
        for name, value in zip(found.files, expected):
            np.testing.assert_allclose(found[name], value, rtol=1e-4, atol=1e-6)

    def test_loaded_model_goes_on_with_other_stages(self, devices, tmp_path):
        fit = {"batch_size": 10, "shuffle": False, "epochs": 2, "verbose": 0}
        expected = plain()
        expected.fit(X, Y, **fit)
        model = split(devices, num_stages=2)
        model.fit(X, Y, **fit)
        model.save(tmp_path / "model.keras")
        loaded = keras.models.load_model(tmp_path / "model.keras")
        again = PipelineSplit(loaded, devices[1:4], micro_batches=3, schedule="gpipe")
        assert again.compiled
        again.fit(X, Y, **fit)
        expected.fit(X, Y, **fit)
        assert_same_weights(again, expected)
        assert int(again.optimizer.iterations) == 16
        for slot, value in zip(again.optimizer.variables, expected.optimizer.variables):
            np.testing.assert_allclose(slot, value, rtol=1e-4, atol=1e-6)
        kernels = {v.shape: v.value.device for v in again.trainable_variables if v.shape.rank == 2}
        for slot in again.optimizer.variables:
            if slot.shape.rank == 2:
                assert slot.value.device == kernels[slot.shape]

    def test_weights_go_both_ways(self, devices, tmp_path):
        model, other = split(devices), plain()
        model.fit(X, Y, verbose=0)
        model.save_weights(tmp_path / "a.weights.h5")
        other.optimizer.build(other.trainable_variables)
        other.load_weights(tmp_path / "a.weights.h5")
        assert_same_weights(other, model)
        other.fit(X, Y, verbose=0)
        other.save_weights(tmp_path / "b.weights.h5")
        model.load_weights(tmp_path / "b.weights.h5")
        assert_same_weights(other, model)
        assert {normalize(v.value.device) for v in model.trainable_variables} == set(devices[:2])

    def test_compile_settings_are_the_users(self, devices, tmp_path):
        model = split(devices, weighted_metrics=["sparse_categorical_crossentropy"])
        model.fit(X, Y, verbose=0)
        model.save(tmp_path / "model.keras")
        config = keras.models.load_model(tmp_path / "model.keras").get_compile_config()
        assert config["loss"] == "sparse_categorical_crossentropy"
        assert config["weighted_metrics"] == ["sparse_categorical_crossentropy"]
        assert config["optimizer"]["class_name"] == "Adam"

    def test_saving_the_wrapper_as_such_is_refused(self, devices, tmp_path):
        with pytest.raises(ValueError, match=r"split\.save"):
            keras.saving.save_model(split(devices), tmp_path / "model.keras")

    def test_tf_checkpoint(self, devices, tmp_path):
        model = split(devices)
        model.fit(X, Y, verbose=0)
        checkpoint = tf.train.Checkpoint(model=model.model, optimizer=model.optimizer)
        path = checkpoint.save(tmp_path / "checkpoint")
        before = model.get_weights()
        model.fit(X, Y, verbose=0)
        checkpoint.restore(path)
        for value, expected in zip(model.get_weights(), before):
            np.testing.assert_array_equal(value, expected)


class TestUsersOwnObjects:
    def test_the_model_itself_is_trained(self, devices):
        model = make()
        kernel = model.layers[0].kernel
        before = kernel.numpy()
        wrapped = compiled(PipelineSplit(model, devices[:2]))
        wrapped.fit(X, Y, verbose=0)
        assert wrapped.model is model
        assert model.layers[0].kernel is kernel
        assert not np.allclose(kernel.numpy(), before)

    def test_summary_layers_and_weights_are_the_models(self, devices):
        model = split(devices)
        lines = []
        model.summary(print_fn=lines.append)
        assert "dense" in "\n".join(lines)
        assert model.layers == model.model.layers
        assert model.get_layer("dense") is model.model.layers[0]
        assert model.count_params() == model.model.count_params()
        model.set_weights([np.zeros_like(w) for w in model.get_weights()])
        assert not np.any(model.model.get_weights()[0])

    def test_the_inner_model_still_works_alone(self, devices):
        model = split(devices)
        model.fit(X, Y, verbose=0)
        np.testing.assert_allclose(
            model.model.evaluate(X, Y, verbose=0), model.evaluate(X, Y, verbose=0), rtol=1e-5
        )

    def test_freezing_and_compiling_again(self, devices):
        model = split(devices)
        model.fit(X, Y, verbose=0)
        model.get_layer("dense").trainable = False
        frozen = model.get_layer("dense").kernel.numpy()
        compiled(model)
        model.fit(X, Y, verbose=0)
        np.testing.assert_array_equal(model.get_layer("dense").kernel.numpy(), frozen)
        assert len(model.trainable_weights) == 4


class TestStageLists:
    """A list of layers of any kind, one a stage."""

    def stages(self):
        class Encoder(keras.Model):
            def __init__(self):
                super().__init__()
                self.first, self.second = layers.Dense(8, "tanh"), layers.Dense(5, "tanh")

            def call(self, inputs):
                return {"code": self.second(self.first(inputs)), "inputs": inputs}

        class Decoder(layers.Layer):
            def __init__(self):
                super().__init__()
                self.dense = layers.Dense(3, activation="softmax")

            def build(self, input_shape):
                self.dense.build((None, 11))

            def call(self, values):
                return self.dense(keras.ops.concatenate([values["code"], values["inputs"]], -1))

        keras.backend.clear_session()
        keras.utils.set_random_seed(0)
        found = [Encoder(), layers.Identity(), Decoder()]
        value = X[:2]
        for stage in found:
            value = stage(value)
        return found

    def test_subclassed_stages_train_as_one_model(self, devices):
        class Whole(keras.Model):
            def __init__(self, stages):
                super().__init__()
                self.stages = stages

            def call(self, inputs):
                for stage in self.stages:
                    inputs = stage(inputs)
                return inputs

        fit = {"batch_size": 10, "shuffle": False, "epochs": 2, "verbose": 0}
        expected = compiled(Whole(self.stages()))
        history = expected.fit(X, Y, **fit)
        model = compiled(PipelineSplit(self.stages(), devices[:3], micro_batches=4))
        assert_same_history(model.fit(X, Y, **fit), history)
        assert_same_weights(model, expected)
        assert [stage.device for stage in model.stages] == devices[:3]

    def test_stages_of_stock_models_are_saved_as_one(self, devices, tmp_path):
        def halves():
            keras.backend.clear_session()
            keras.utils.set_random_seed(0)
            first = keras.Sequential([keras.Input((6,)), layers.Dense(8, "tanh")])
            second = keras.Sequential([keras.Input((8,)), layers.Dense(3, "softmax")])
            return [first, second]

        model = compiled(PipelineSplit(halves(), devices[:2], micro_batches=2))
        model.fit(X, Y, verbose=0)
        model.save(tmp_path / "model.keras")
        loaded = keras.models.load_model(tmp_path / "model.keras")
        np.testing.assert_allclose(
            loaded.predict(X, verbose=0), model.predict(X, verbose=0), rtol=1e-5
        )


def test_a_schedule_of_ones_own(devices):
    """Given as text: stage 1 leaves its weights to the end, and stage 0 runs its forward again."""
    lanes = [
        "0F0 0F1 0R0 0B0 0W0 0R1 0B1 0W1",
        "1F0 1B0 1F1 1B1 1W0 1W1",
    ]
    model = keras.Sequential([keras.Input((4,)), layers.Dense(8, "relu"), layers.Dense(2)])
    split = PipelineSplit(model, devices[:2], schedule=lanes)
    split.compile("sgd", "mse")
    assert split.micro_batches == 2
    report = split.verify(np.ones((5, 4), "float32"), np.zeros((5, 2), "float32"))
    assert report.max_relative < 1e-5


def test_stages_can_be_measured(devices):
    model = keras.Sequential([keras.Input((4,)), layers.Dense(8, "relu"), layers.Dense(2)])
    split = PipelineSplit(model, devices[:2], micro_batches=2, schedule="zero_bubble")
    split.compile("sgd", "mse")
    split.fit(np.ones((6, 4), "float32"), np.zeros((6, 2), "float32"), verbose=0)
    costs, sizes = split.measure(3)
    assert all(seconds > 0 for seconds in costs.forward)
    # The last layer needs its input again, 3 samples of 8 floats; its kernel is not kept.
    assert sizes.inputs[1] == 3 * 8 * 4
    assert sizes.activations[1] <= 2 * 3 * 8 * 4
