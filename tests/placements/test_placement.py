"""Which device every layer asked for and which it got, as users meet it."""

import json
import re
import subprocess
import sys

import cluster
import keras
import numpy as np
import pytest
import tensorflow as tf
import worker
from pinned import Pinned, make_model
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import keras_mgpu as km
from keras_mgpu.internals import tf_graph_collection
from keras_mgpu.placements.observation import PlacementError

HERE = cluster.HERE


def data(num_samples=8, size=4, outputs=2):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((num_samples, size)).astype("float32")
    return x, rng.standard_normal((num_samples, outputs)).astype("float32")


def report_of(model, **options):
    """What the callback finds in one epoch of two batches."""
    logger = km.DevicePlacementLogger(verbose=0, **options)
    x, y = data(16)
    model.fit(x, y, batch_size=8, verbose=0, callbacks=[logger])
    return logger.report


def layers_of(report):
    return {layer.path: layer for layer in report.layers}


# What goes wrong, and is named.


def test_without_gpus_asked_for_and_got_are_told_apart_for_every_op():
    report = report_of(make_model("/GPU:0", "/GPU:1"))
    layers = layers_of(report)
    assert layers["first"].asked == (("GPU:0",),)
    assert layers["second"].asked == (("GPU:1",),)
    ops = [op for op in report.ops if op.asked.startswith("GPU")]
    assert {op.layer for op in ops} >= {"first", "second"}
    assert {op.op for op in ops} >= {"MatMul", "Relu"}
    for op in ops:
        assert op.got == "CPU:0"
        assert op.reason == f"there is no {op.asked} here"
    assert sum(each.count for each in report.moved) == len(ops)
    assert any("asked for GPU:1 and ran on CPU:0" in each for each in report.warnings)


def test_an_op_without_gpu_kernel():
    report = report_of(make_model("/GPU:0", "/GPU:0", text=True))
    reasons = {(each.layer, each.op): each.reason for each in report.moved}
    assert reasons["text", "AsString"] == "no GPU kernel for AsString"
    assert reasons["text", "StringToNumber"] == "no GPU kernel for StringToNumber"
    assert reasons["first", "Relu"] == "there is no GPU:0 here"
    assert any("no GPU kernel for AsString" in each for each in report.warnings)


def test_slots_far_from_their_weights(devices):
    report = report_of(make_model(devices[0], devices[1]))
    second = layers_of(report)["second"]
    assert second.weights_on == ("CPU:1",)
    assert second.slots_on == ("CPU:0",)
    assert any(
        "second has its weights on CPU:1 and its slots on CPU:0" in each for each in report.warnings
    )
    split = km.PipelineSplit(make_model(devices[0], devices[0]), devices[:2], cuts=["first"])
    split.compile("adam", "mse")
    assert not [each for each in report_of(split).warnings if "slots" in each]


def test_a_lopsided_split(devices):
    report = report_of(make_model(devices[0], devices[1], units=512))
    sizes = {each.device: each.num_bytes for each in report.devices}
    share = round(100 * sizes["CPU:0"] / sum(sizes.values()))
    assert share > 65
    assert any(f"CPU:0 holds {share} % of the memory" in each for each in report.warnings)
    assert report.devices[0].weight_bytes == 4 * 512 * 4
    assert report.devices[1].weight_bytes == 512 * 2 * 4


def test_a_layer_in_the_wrong_place(devices):
    model = make_model(devices[0], devices[2])
    km.assert_placement(model, {"first": "CPU:0", "sec*": devices[2]})
    with pytest.raises(AssertionError, match="second should be on CPU:1, and is on CPU:2"):
        km.assert_placement(model, {"first": "CPU:0", "second": "CPU:1"})
    pinned = make_model("/GPU:0", "/GPU:1")
    km.assert_placement(pinned, {"first": "GPU:0", "second": "GPU:1"}, asked=True)
    with pytest.raises(AssertionError, match="there is no GPU:0 here"):
        km.assert_placement(pinned, {"first": "GPU:0"})


def test_without_soft_placement_the_error_names_the_layer():
    models = make_model("/CPU:0", "/GPU:1"), make_model("/GPU:0", "/CPU:0", text=True)
    tf.config.set_soft_device_placement(False)
    try:
        with pytest.raises(PlacementError, match=r"of second asked for GPU:1: there is no GPU:1"):
            report_of(models[0])
        with pytest.raises(PlacementError, match=r"1 op of text asked for GPU:0: no GPU kernel"):
            km.placement(models[1], data()[0])
    finally:
        tf.config.set_soft_device_placement(True)


# Every way to use several devices.


def plain():
    inputs = keras.Input((4,))
    x = keras.layers.Dense(8, activation="relu", name="first")(inputs)
    shared = keras.layers.Dense(8, name="shared")
    x = shared(shared(x))
    inner = keras.Sequential([keras.layers.Dense(6), keras.layers.LayerNormalization()], name="in")
    outputs = keras.layers.Dense(2, name="head")(inner(x))
    return keras.Model(inputs, outputs, name="net")


PATHS = {"first", "shared", "in/dense", "in/layer_normalization", "head"}


def compiled():
    model = plain()
    model.compile("adam", "mse", jit_compile=False)
    return model


EXPECTED = {
    "one device": (("CPU:1",),),
    "mirrored": (("CPU:0",), ("CPU:1",)),
    "one worker": (("CPU:0",),),
    "central storage": (("CPU:0",), ("CPU:1",)),
}


@pytest.mark.parametrize("name", list(EXPECTED))
@pytest.mark.parametrize("custom_loop", [False, True], ids=["fit", "loop"])
def test_strategies(devices, name, custom_loop):
    strategy = cluster.strategies(devices)[name]()
    with strategy.scope():
        model = compiled()
    report = report_of_loop(strategy, model) if custom_loop else report_of(model)
    layers = layers_of(report)
    assert set(layers) >= PATHS
    for path in PATHS:
        compute = tuple(tuple(d for d in each if d != "CPU:2") for each in layers[path].got)
        assert compute == EXPECTED[name], path
    on = {"central storage": ("CPU:2",), "mirrored": ("CPU:0", "CPU:1")}
    weights_on = on.get(name, EXPECTED[name][0])
    assert layers["first"].weights_on == weights_on
    assert layers["first"].weight_bytes == (4 * 8 + 8) * 4 * len(weights_on)
    assert layers["first"].slot_bytes == 2 * layers["first"].weight_bytes
    assert report.strategy.startswith(type(strategy).__name__)
    if len(EXPECTED[name]) > 1:
        assert {(edge.source, edge.target) for edge in report.edges} >= {("CPU:1", "CPU:0")}


def report_of_loop(strategy, model):
    x, y = data()

    step = worker.make_step(strategy, model)
    with strategy.scope():
        model.optimizer.build(model.trainable_variables)
    logger = km.DevicePlacementLogger(verbose=0, step=step)
    callbacks = keras.callbacks.CallbackList([logger], model=model)
    callbacks.on_train_begin()
    for batch in range(2):
        callbacks.on_train_batch_begin(batch)
        step(x, y)
        callbacks.on_train_batch_end(batch)
    callbacks.on_train_end()
    return logger.report


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "interleaved", "zero_bubble"])
@pytest.mark.parametrize("recompute", [False, True])
def test_pipelines(devices, schedule, recompute):
    options = {"stages_per_device": 2} if schedule == "interleaved" else {}
    split = km.PipelineSplit(
        plain(), devices[:2], micro_batches=4, schedule=schedule, recompute=recompute, **options
    )
    split.compile("adam", "mse")
    report = report_of(split)
    assert report.num_samples == 2
    for path, layer in layers_of(report).items():
        if path in PATHS:
            expected = {split.stages[index].device.strip("/") for index in layer.stages}
            assert set(layer.got[0]) == set(layer.asked[0]) == expected, path
            assert set(layer.weights_on) <= expected
            assert layer.slots_on == layer.weights_on
    assert not report.moved
    edges = {(edge.source, edge.target): edge for edge in report.edges}
    # Forward, what each cut hands on for all eight samples; backward, as much again.
    assert edges["CPU:0", "CPU:1"].num_bytes >= 8 * 8 * 4
    assert edges["CPU:1", "CPU:0"].num_bytes >= 8 * 8 * 4
    assert all(edge.num_unknown == 0 for edge in report.edges)


OPTIMIZERS = {
    "sgd": lambda: keras.optimizers.SGD(0.1, momentum=0.9),
    "adam": keras.optimizers.Adam,
    "adamw": lambda: keras.optimizers.AdamW(clipnorm=1.0, use_ema=True),
    "clipped": lambda: keras.optimizers.Adam(global_clipnorm=1.0),
    "scaled": lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam()),
    "accumulating": lambda: keras.optimizers.Adam(gradient_accumulation_steps=2),
}


@pytest.mark.parametrize("name", list(OPTIMIZERS))
def test_neither_weights_nor_gradients_nor_slots_leave_their_device(devices, name):
    size = 64
    hidden = [keras.layers.Dense(size, use_bias=False) for _ in range(3)]
    model = keras.Sequential([keras.Input((4,)), *hidden, keras.layers.Dense(2)])
    split = km.PipelineSplit(model, devices[:2], micro_batches=2, cuts=[hidden[0].name])
    split.compile(OPTIMIZERS[name](), "mse")
    report = report_of(split)
    edges = {(edge.source, edge.target): edge for edge in report.edges}
    passed_on = 8 * size * 4  # A batch of activations, or of their gradients.
    assert passed_on < size * size * 4
    # Keras makes the zeros that it resets accumulators to without regard to devices.
    zeros = 2 * size * size * 4 if name == "accumulating" else 0
    assert passed_on <= edges["CPU:0", "CPU:1"].num_bytes < passed_on + zeros + 1024
    assert passed_on <= edges["CPU:1", "CPU:0"].num_bytes < passed_on + 1024
    assert all(edge.num_unknown == 0 for edge in report.edges)


def test_towers_with_layers_of_the_same_names(devices):
    def tower(name):
        return keras.Sequential([keras.Input((4,)), keras.layers.Dense(4, name="dense")], name=name)

    inputs = keras.Input((4,))
    x = tower("tower")(inputs)
    outputs = keras.layers.Dense(2, name="dense")(tower("tower_1")(tower("tower_2")(x)))
    model = keras.Model(inputs, outputs)
    cuts = ["tower/dense", "tower_2/dense", "tower_1/dense"]
    split = km.PipelineSplit(model, devices, micro_batches=2, cuts=cuts)
    split.compile("adam", "mse")
    layers = layers_of(report_of(split))
    found = [layers[path].got for path in [*cuts, "dense"]]
    assert found == [((f"CPU:{index}",),) for index in range(4)]


def test_names_that_number_themselves():
    """Layers called `dense`, `dense_1`, … and one of them called three times."""
    inputs = keras.Input((4,))
    layers = [keras.layers.Dense(4, name=name) for name in ("dense", "dense_1", "dense_1_1")]
    x = inputs
    for layer in [layers[1], layers[0], layers[1], layers[2], layers[1]]:
        x = layer(x)
    model = keras.Model(inputs, keras.layers.Dense(2, name="last")(x))
    model.compile("sgd", "mse", jit_compile=False)
    report = report_of(model)
    products = [op.layer for op in report.ops if "MatMul" in op.op and "gradient" not in op.name]
    assert products.count("dense_1") == 3
    assert products.count("dense") == products.count("dense_1_1") == 1
    assert layers_of(report)["dense_1"].activation_bytes == 3 * 8 * 4 * 4


def test_layers_inside_layers_and_loops(devices):
    class Block(keras.layers.Layer):
        def __init__(self):
            super().__init__(name="block")
            self.dense = keras.layers.Dense(4)
            self.pinned = Pinned(4, devices[1], name="pinned")

        def call(self, x):
            return self.pinned(self.dense(x))

    class Net(keras.Model):
        def __init__(self):
            super().__init__(name="net")
            self.block = Block()
            self.repeat = keras.layers.RepeatVector(3)
            self.lstm = keras.layers.LSTM(4)
            self.head = keras.layers.Dense(2)

        def call(self, x):
            return self.head(self.lstm(self.repeat(self.block(x))))

    model = Net()
    model.compile("adam", "mse", jit_compile=False)
    layers = layers_of(km.placement(model, data()))
    # Keras makes the weights of layers inside layers without regard to the device asked for, and
    # that shows: the product runs where it should, the weight is read elsewhere.
    assert layers["block/pinned"].got == (("CPU:1", "CPU:0"),)
    assert layers["block/pinned"].weights_on == ("CPU:0",)
    assert layers["block/dense"].got == (("CPU:0",),)
    layers = layers_of(report_of(model))
    assert layers["block/pinned"].asked == (("CPU:1",),)
    recurrent = [layer for path, layer in layers.items() if path.startswith("lstm")]
    assert sum(layer.num_ops for layer in recurrent) > 20


def test_compiled_by_xla():
    model = plain()
    model.compile("adam", "mse", jit_compile=True)
    report = report_of(model)
    assert layers_of(report)["head"].got == (("CPU:0",),)
    assert report.source == "executed graph"


def test_every_worker_tells_its_own(tmp_path):
    cluster.finish(cluster.start_workers(2, "placement", tmp_path))
    for index in range(2):
        text = (tmp_path / f"placement_worker_{index}.json").read_text()
        report = km.PlacementReport.from_json(text)
        first = layers_of(report)["first"]
        assert first.got == ((f"worker:{index}/CPU:0",),)
        assert report.collectives
        assert (tmp_path / f"placement_worker_{index}").is_dir()


def test_parameter_servers(tmp_path):
    script = [sys.executable, str(HERE / "parameter_server.py"), str(tmp_path), "0"]
    run = subprocess.run(script, capture_output=True, text=True, timeout=240, check=False)
    assert run.returncode == 0, run.stderr[-3000:]
    report = km.PlacementReport.from_json((tmp_path / "logs" / "placement.json").read_text())
    layers = layers_of(report)
    on = {device for layer in layers.values() for device in layer.weights_on}
    assert on == {"ps:0/CPU:0", "ps:1/CPU:0"}
    assert layers["first"].got[0][0] == "worker:0/CPU:0"
    assert report.source == "traced graph"


def test_it_is_what_tensorflow_says_it_did(tmp_path):
    """Against TensorFlow's own log, for functions that stay calls and are placed when called."""
    run = subprocess.run(
        [sys.executable, str(HERE / "placement_log.py"), str(tmp_path / "ops.json")],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    logged = {}
    for name, device in re.findall(r"\b([\w./-]+): \(\w+\): (/job:\S+)", run.stderr):
        logged.setdefault(name, set()).add(device.rpartition("device:")[2])
    compared = 0
    for op in json.loads((tmp_path / "ops.json").read_text()):
        if op["layer"].startswith("("):
            continue  # Names outside of layers come again and again.
        parts = op["name"].split("/")
        names = ["/".join(parts[start:]) for start in range(len(parts))]
        found = next((logged[name] for name in names if name in logged), None)
        if found is not None:
            compared += 1
            assert op["got"] in found, op
    assert compared > 50


# What it costs, and what it leaves alone.


class Counting(keras.layers.Layer):
    num_calls = 0

    def call(self, x):
        type(self).num_calls += 1
        return x


def test_nothing_is_traced_for_it():
    def num_traces(*callbacks):
        Counting.num_calls = 0
        model = keras.Sequential([keras.Input((4,)), Counting(), keras.layers.Dense(2)])
        model.compile("adam", "mse")
        x, y = data(16)
        model.fit(x, y, batch_size=8, epochs=2, verbose=0, callbacks=list(callbacks))
        return Counting.num_calls

    assert num_traces(km.DevicePlacementLogger(verbose=0)) == num_traces()


def test_nothing_happens_after_the_first_batch(monkeypatch):
    calls = []
    collecting = tf_graph_collection.collecting
    monkeypatch.setattr(
        tf_graph_collection, "collecting", lambda: (calls.append(1), collecting())[1]
    )
    model = make_model("/CPU:0", "/CPU:0")
    logger = km.DevicePlacementLogger(verbose=0)
    functions = set()
    look = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: functions.add(model.train_function)
    )
    x, y = data(32)
    for _ in range(2):
        model.fit(x, y, batch_size=8, epochs=2, verbose=0, callbacks=[logger, look])
    assert calls == [1]
    assert len(functions) == 1


def test_a_model_that_has_trained_before():
    model = make_model("/CPU:0", "/CPU:1")
    first = report_of(model)
    second = report_of(model)
    assert second.source == "executed graph"
    assert second == first
    assert second.to_json() == first.to_json()


def test_batches_of_unknown_size():
    model = make_model("/CPU:0", "/CPU:1")
    logger = km.DevicePlacementLogger(verbose=0)
    dataset = tf.data.Dataset.from_tensor_slices(data(12)).batch(5)
    model.fit(dataset, verbose=0, shuffle=False, callbacks=[logger])
    assert logger.report.num_samples == 5
    assert layers_of(logger.report)["second"].activation_bytes == 5 * 2 * 4
    edges = {(edge.source, edge.target): edge for edge in logger.report.edges}
    assert edges["CPU:0", "CPU:1"].num_bytes >= 5 * 8 * 4


def test_several_steps_in_one_execution():
    model = make_model("/CPU:0", "/CPU:1")
    model.compile("adam", "mse", steps_per_execution=2, jit_compile=False)
    assert "CPU:1" in layers_of(report_of(model))["second"].got[0]


def test_without_training_nothing_changes():
    model = make_model("/CPU:0", "/CPU:1")
    before = [v.numpy() for v in model.variables]
    report = km.placement(model, data())
    assert layers_of(report)["second"].got == (("CPU:1",),)
    assert report == km.placement(model, data()[0])
    for old, variable in zip(before, model.variables):
        np.testing.assert_array_equal(old, variable.numpy())


def test_eager_training_has_no_graph(capsys):
    model = make_model("/CPU:0", "/CPU:1")
    model.compile("adam", "mse", run_eagerly=True)
    logger = km.DevicePlacementLogger()
    model.fit(*data(), verbose=0, callbacks=[logger])
    assert logger.report.source == "variables"
    assert layers_of(logger.report)["second"].weights_on == ("CPU:1",)
    assert "no graph was run" in capsys.readouterr().out


# What a newcomer tried.


def fit_once(model, *loggers):
    """One batch of eight."""
    model.fit(*data(), batch_size=8, verbose=0, callbacks=list(loggers))
    return [logger.report for logger in loggers]


def quiet():
    return km.DevicePlacementLogger(verbose=0)


def test_a_single_batch_of_a_model_that_has_trained_and_two_loggers():
    model = make_model("/CPU:0", "/CPU:1")
    fit_once(model)
    first, second = fit_once(model, quiet(), quiet())
    assert first == second
    assert first.source == "executed graph"


def test_several_inputs():
    one, other = keras.Input((4,)), keras.Input((3,))
    x = keras.layers.Concatenate()([one, other])
    model = keras.Model([one, other], keras.layers.Dense(2, name="head")(x))
    km.assert_placement(model, {"head": "CPU:0"})
    report = km.placement(model, [np.ones((5, 4)), np.ones((5, 3))])
    assert report.num_samples == 5


def test_nothing_asked_for_is_not_what_was_expected():
    model = plain()
    with pytest.raises(AssertionError, match="head should be on GPU:1, and asked for none"):
        km.assert_placement(model, {"head": "GPU:1"}, asked=True)


def test_samples_of_one_step_among_several():
    model = make_model("/CPU:0", "/CPU:1")
    model.compile("adam", "mse", steps_per_execution=2, jit_compile=False)
    report = report_of(model)
    assert report.num_samples == 8
    assert all(edge.num_unknown == 0 for edge in report.edges)


class OwnStep(keras.Model):
    """Two optimizers, and no loss that Keras knows of."""

    def __init__(self):
        super().__init__(name="own")
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


def test_a_step_of_ones_own_with_two_optimizers():
    model = OwnStep()
    model.build((None, 4))
    model.compile("adam", jit_compile=False)
    report = report_of(model)
    assert report.num_samples == 8
    layers = layers_of(report)
    for path in ("first", "second"):
        assert layers[path].slot_bytes == 2 * layers[path].weight_bytes
    assert layers["(optimizer)"].num_ops > 40


def test_loss_scaling_has_an_optimizer_too():
    model = plain()
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam())
    model.compile(optimizer, "mse", jit_compile=False)
    assert layers_of(report_of(model))["(optimizer)"].num_ops > 50


def test_every_parameter_once():
    class Tied(keras.layers.Layer):
        def __init__(self, other):
            super().__init__(name="tied")
            self.other = other
            self.kernel = None

        def build(self, shape):
            self.kernel = self.other.kernel

        def call(self, x):
            return tf.matmul(x, self.kernel, transpose_b=True)

    inputs = keras.Input((4,))
    first = keras.layers.Dense(6, name="first")
    x = keras.layers.Dropout(0.5)(first(inputs))
    outputs = keras.layers.Dense(2)(Tied(first)(x))
    model = keras.Model(inputs, outputs)
    model.compile("adam", "mse", jit_compile=False)
    report = report_of(model)
    assert sum(layer.num_parameters for layer in report.layers) == model.count_params()
    weights = sum(int(np.prod(v.shape)) * 4 for v in model.weights)
    assert sum(each.weight_bytes for each in report.devices) == weights


def test_layers_beside_the_graph():
    class Net(keras.Model):
        def __init__(self):
            inputs = keras.Input((4,))
            super().__init__(inputs, keras.layers.Dense(3, name="inside")(inputs))
            self.extra = keras.layers.Dense(2, name="extra")

        def call(self, x):
            return self.extra(super().call(x))

    model = Net()
    model(data()[0])
    model.compile("adam", "mse", jit_compile=False)
    layers = layers_of(report_of(model))
    assert layers["extra"].num_parameters == 8
    assert layers["extra"].got == (("CPU:0",),)


def test_activations_are_where_the_forward_pass_ran(devices):
    report = report_of(make_model(devices[0], devices[1], units=64))
    totals = {each.device: each for each in report.devices}
    assert totals["CPU:0"].activation_bytes == 8 * 64 * 4
    assert totals["CPU:1"].activation_bytes == 8 * 2 * 4


@pytest.mark.parametrize("name", ["replica_1", "stage_1", "loss", "adam", "compile_loss"])
@pytest.mark.parametrize("way", ["mirrored", "pipeline"])
def test_names_that_others_use(devices, name, way):
    def make():
        names = ["first", name, "last"]
        hidden = [keras.layers.Dense(4, name=each) for each in names]
        return keras.Sequential([keras.Input((4,)), *hidden, keras.layers.Dense(2, name="out")])

    if way == "mirrored":
        strategy = cluster.mirrored(devices[:2])
        with strategy.scope():
            model = make()
            model.compile("adam", "mse", jit_compile=False)
        expected = (("CPU:0",), ("CPU:1",)), (("CPU:0",), ("CPU:1",))
    else:
        model = km.PipelineSplit(make(), devices[:2], micro_batches=2, cuts=[name])
        model.compile("adam", "mse")
        expected = (("CPU:0",),), (("CPU:1",),)
    layers = layers_of(report_of(model))
    assert (layers[name].got, layers["last"].got) == expected
    assert layers["(optimizer)"].num_ops > 50
    assert layers["(loss)"].num_ops > 5


def test_equal_names_have_rows_of_their_own():
    class Net(keras.Model):
        def __init__(self):
            super().__init__()
            self.blocks = [keras.layers.Dense(4, name="block") for _ in range(2)]
            self.head = keras.layers.Dense(2)

        def call(self, x):
            return self.head(self.blocks[1](self.blocks[0](x)))

    model = Net()
    model.compile("adam", "mse", jit_compile=False)
    layers = layers_of(report_of(model))
    assert layers["block"].num_parameters == layers["block#2"].num_parameters == 20


def test_numbers_are_the_same_with_and_without():
    def losses(*loggers):
        keras.utils.set_random_seed(0)
        model = plain()
        model.compile("adam", "mse")
        x, y = data(16)
        history = model.fit(x, y, batch_size=8, epochs=3, verbose=0, callbacks=list(loggers))
        return history.history["loss"]

    assert losses(quiet()) == losses()


# Where it shows.


def test_json_graph_and_text(tmp_path, devices, capsys):
    split = km.PipelineSplit(plain(), devices[:2], micro_batches=2)
    split.compile("adam", "mse")
    logger = km.DevicePlacementLogger(tmp_path)
    split.fit(*data(), verbose=0, callbacks=[logger])
    printed = capsys.readouterr().out
    assert "in/layer_normalization" in printed
    assert "\x1b" not in printed  # No colours in a file.
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


# Bad input.


def test_bad_input(tmp_path):
    with pytest.raises(ValueError, match="`verbose` must be 0 or 1"):
        km.DevicePlacementLogger(verbose=3)
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="`log_dir` is a file"):
        km.DevicePlacementLogger(tmp_path / "file")
    model = make_model("/CPU:0", "/CPU:1")
    with pytest.raises(ValueError, match=r"There are: second.*'secnd'"):
        km.assert_placement(model, {"secnd": "CPU:1"})
    with pytest.raises(ValueError, match='must be named like "GPU:0"'):
        km.assert_placement(model, {"second": "the big one"})

    class Net(keras.Model):
        def call(self, x):
            return x

    with pytest.raises(ValueError, match="Give a batch"):
        km.assert_placement(Net(), {"first": "CPU:0"})


def test_a_fit_that_fails_leaves_nothing_behind():
    model = make_model("/CPU:0", "/CPU:1")
    logger = km.DevicePlacementLogger(verbose=0)
    x, y = data()
    model.optimizer.build(model.trainable_variables)
    with pytest.raises(ValueError):
        model.fit(x[:, :3], y, verbose=0, callbacks=[logger])
    model.fit(x, y, verbose=0, callbacks=[logger])
    assert "CPU:1" in layers_of(logger.report)["second"].got[0]
