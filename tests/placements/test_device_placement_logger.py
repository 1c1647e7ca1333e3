"""The callback: when it reports, what it writes, and what it leaves alone."""

import keras
import pytest
import tensorflow as tf
from pinned import make_model
from placed import PATHS, compiled, data, edges_of, layers_of, make_nested, report_of
from simulated import DEVICES, NAMES
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import keras_mgpu as km
from keras_mgpu.internals import tf_graph_collection


def quiet():
    return km.DevicePlacementLogger(verbose=0)


class Counting(keras.layers.Layer):
    num_calls = 0

    def call(self, x):
        type(self).num_calls += 1
        return x


def test_nothing_is_traced_and_no_number_changes():
    def train(*callbacks):
        Counting.num_calls = 0
        keras.utils.set_random_seed(0)
        model = keras.Sequential([keras.Input((4,)), Counting(), keras.layers.Dense(2)])
        model.compile("adam", "mse")
        x, y = data(16)
        history = model.fit(x, y, batch_size=8, epochs=2, verbose=0, callbacks=list(callbacks))
        return Counting.num_calls, history.history["loss"]

    assert train(quiet()) == train()


def test_nothing_happens_after_the_first_batch(monkeypatch):
    calls = []
    collecting = tf_graph_collection.collecting
    monkeypatch.setattr(
        tf_graph_collection, "collecting", lambda: (calls.append(1), collecting())[1]
    )
    model = make_model(DEVICES[0], DEVICES[0])
    logger = quiet()
    functions = set()
    record = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: functions.add(model.train_function)
    )
    x, y = data(32)
    for _ in range(2):
        model.fit(x, y, batch_size=8, epochs=2, verbose=0, callbacks=[logger, record])
    assert calls == [1]
    assert len(functions) == 1


def test_a_model_that_was_trained_before_and_two_loggers():
    model = make_model(*DEVICES[:2])
    before = report_of(model)
    loggers = [quiet(), quiet()]
    model.fit(*data(), batch_size=8, verbose=0, callbacks=loggers)
    for logger in loggers:
        assert logger.report == before
        assert logger.report.to_json() == before.to_json()
        assert logger.report.source == "executed graph"


def test_batches_of_unknown_size():
    model = make_model(*DEVICES[:2])
    logger = quiet()
    dataset = tf.data.Dataset.from_tensor_slices(data(12)).batch(5)
    model.fit(dataset, verbose=0, shuffle=False, callbacks=[logger])
    assert logger.report.num_samples == 5
    assert layers_of(logger.report)["second"].activation_bytes == 5 * 2 * 4
    assert edges_of(logger.report)[NAMES[0], NAMES[1]].num_bytes >= 5 * 8 * 4


def test_several_steps_per_execution():
    model = compiled(make_model(*DEVICES[:2]), steps_per_execution=2)
    report = report_of(model)
    assert NAMES[1] in layers_of(report)["second"].got[0]
    assert report.num_samples == 8
    assert all(edge.num_unknown == 0 for edge in report.edges)


def test_eager_training_has_no_graph(capsys):
    model = make_model(*DEVICES[:2])
    model.compile("adam", "mse", run_eagerly=True)
    logger = km.DevicePlacementLogger()
    model.fit(*data(), verbose=0, callbacks=[logger])
    assert logger.report.source == "variables"
    assert layers_of(logger.report)["second"].weights_on == (NAMES[1],)
    assert "no graph was run" in capsys.readouterr().out


class TwoOptimizers(keras.Model):
    """A custom `train_step` with two optimizers, and no loss that Keras knows."""

    def __init__(self):
        super().__init__(name="custom")
        self.first = keras.layers.Dense(4, name="first")
        self.second = keras.layers.Dense(2, name="second")
        self.other_optimizer = keras.optimizers.Adam(name="other_adam")

    def build(self, shape):
        self.first.build(shape)
        self.second.build((None, 4))
        self.other_optimizer.build(self.second.trainable_variables)

    def call(self, x):
        return self.second(self.first(x))

    def train_step(self, batch):
        x, y = batch
        with tf.GradientTape(persistent=True) as tape:
            loss = tf.reduce_mean(tf.square(self(x) - y))
        for optimizer, layer in (
            (self.optimizer, self.first),
            (self.other_optimizer, self.second),
        ):
            weights = layer.trainable_variables
            optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))
        return {"value": loss}


def test_a_custom_train_step_with_two_optimizers():
    model = TwoOptimizers()
    model.build((None, 4))
    model.compile("adam", jit_compile=False)
    report = report_of(model)
    assert report.num_samples == 8
    layers = layers_of(report)
    for path in ("first", "second"):
        assert layers[path].slot_bytes == 2 * layers[path].weight_bytes
    assert layers["(optimizer)"].num_ops > 40


def test_loss_scaling_wraps_an_optimizer():
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam())
    model = compiled(make_nested(), optimizer)
    assert layers_of(report_of(model))["(optimizer)"].num_ops > 50


def test_json_graph_and_text(tmp_path, devices, capsys):
    split = km.PipelineSplit(make_nested(), devices[:2], micro_batches=2)
    split.compile("adam", "mse")
    logger = km.DevicePlacementLogger(tmp_path)
    split.fit(*data(), verbose=0, callbacks=[logger])
    printed = capsys.readouterr().out
    assert "in/layer_normalization" in printed
    assert "\x1b" not in printed  # No colors in a file.
    report = km.PlacementReport.from_json((tmp_path / "placement.json").read_text())
    assert report == logger.report
    events = EventAccumulator(str(tmp_path / "placement")).Reload()
    nodes = {node.name: node for node in events.Graph().node}
    for path in PATHS:
        assert nodes[path].device == f"/device:{layers_of(report)[path].got[0][0]}"
    assert list(nodes["head"].input) == ["in/layer_normalization"]
    assert list(nodes["in/dense"].input) == ["shared"]
    (text,) = events.Tensors("placement")
    assert b"| in/dense |" in text.tensor_proto.string_val[0]
    (plugin,) = events.Tensors("keras_mgpu/placement")
    assert plugin.tensor_proto.string_val[0].decode() == report.to_json()
    metadata = events.SummaryMetadata("keras_mgpu/placement")
    assert metadata.plugin_data.plugin_name == "keras_mgpu"


def test_bad_input(tmp_path):
    with pytest.raises(ValueError, match="`verbose` must be 0 or 1"):
        km.DevicePlacementLogger(verbose=3)
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="`log_dir`"):
        km.DevicePlacementLogger(tmp_path / "file")


def test_after_a_fit_that_failed():
    model = make_model(*DEVICES[:2])
    logger = quiet()
    x, y = data()
    model.optimizer.build(model.trainable_variables)
    with pytest.raises(ValueError):
        model.fit(x[:, :3], y, verbose=0, callbacks=[logger])
    model.fit(x, y, verbose=0, callbacks=[logger])
    assert NAMES[1] in layers_of(logger.report)["second"].got[0]
