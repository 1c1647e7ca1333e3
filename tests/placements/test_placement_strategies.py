"""Placements under every strategy, in pipelines, and in several processes."""

import json

import cluster
import keras
import pytest
import simulated
import worker
from pinned import Pinned
from placed import (
    PATHS,
    compare_with_log,
    compiled,
    data,
    edges_of,
    in_layers,
    layers_of,
    make_nested,
    report_of,
)
from simulated import NAMES

import keras_mgpu as km

# This strategy takes all GPUs there are, or one CPU.
ONE_WORKER = tuple(NAMES if simulated.NUM_GPUS else NAMES[:1])
COMPUTE = {
    "one device": ((NAMES[1],),),
    "mirrored": ((NAMES[0],), (NAMES[1],)),
    "one worker": tuple((name,) for name in ONE_WORKER),
    "central storage": ((NAMES[0],), (NAMES[1],)),
}
WEIGHTS = {
    "one device": (NAMES[1],),
    "mirrored": (NAMES[0], NAMES[1]),
    "one worker": ONE_WORKER,
    "central storage": (NAMES[2],),
}


@pytest.mark.parametrize("name", list(COMPUTE))
@pytest.mark.parametrize("custom_loop", [False, True], ids=["fit", "loop"])
def test_strategies(devices, name, custom_loop):
    strategy = cluster.strategies(devices)[name]()
    with strategy.scope():
        model = compiled(make_nested())
    report = report_of_loop(strategy, model) if custom_loop else report_of(model)
    layers = layers_of(report)
    assert set(layers) >= PATHS
    for path in PATHS:
        compute = tuple(tuple(d for d in each if d != NAMES[2]) for each in layers[path].got)
        assert compute == COMPUTE[name], path
    assert layers["first"].weights_on == WEIGHTS[name]
    assert layers["first"].weight_bytes == (4 * 8 + 8) * 4 * len(WEIGHTS[name])
    assert layers["first"].slot_bytes == 2 * layers["first"].weight_bytes
    assert report.strategy.startswith(type(strategy).__name__)
    if len(COMPUTE[name]) > 1:
        assert any(edge.source == NAMES[1] != edge.target for edge in report.edges)


def report_of_loop(strategy, model):
    step = worker.make_step(strategy, model)
    with strategy.scope():
        model.optimizer.build(model.trainable_variables)
    logger = km.DevicePlacementLogger(verbose=0, step=step)
    callbacks = keras.callbacks.CallbackList([logger], model=model)
    callbacks.on_train_begin()
    for batch in range(2):
        callbacks.on_train_batch_begin(batch)
        step(*data())
        callbacks.on_train_batch_end(batch)
    callbacks.on_train_end()
    return logger.report


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "interleaved", "zero_bubble"])
@pytest.mark.parametrize("recompute", [False, True])
def test_pipelines(devices, schedule, recompute):
    options = {"stages_per_device": 2} if schedule == "interleaved" else {}
    split = km.PipelineSplit(
        make_nested(),
        devices[:2],
        micro_batches=4,
        schedule=schedule,
        recompute=recompute,
        **options,
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
    # Activations of all eight samples forward, and as many gradients backward.
    assert edges_of(report)[NAMES[0], NAMES[1]].num_bytes >= 8 * 8 * 4
    assert edges_of(report)[NAMES[1], NAMES[0]].num_bytes >= 8 * 8 * 4
    assert all(edge.num_unknown == 0 for edge in report.edges)


def copies_of_a_layer_elsewhere(devices, micro_batches):
    """What a stage on the first device sends to a layer that asks for the third."""
    inputs = keras.Input((4,))
    x = keras.layers.Dense(64, name="first")(inputs)
    x = Pinned(64, devices[2], name="elsewhere")(x)
    model = keras.Model(inputs, keras.layers.Dense(2)(x))
    split = km.PipelineSplit(model, devices[:2], micro_batches=micro_batches, cuts=["elsewhere"])
    split.compile("adam", "mse")
    return edges_of(report_of(split))[devices[0].strip("/"), devices[2].strip("/")]


def test_copies_inside_of_stages_are_counted_for_every_micro_batch(devices):
    two, four = (copies_of_a_layer_elsewhere(devices, number) for number in (2, 4))
    assert four.num_tensors == 2 * two.num_tensors
    # All eight samples forward, and the weight once for each micro-batch.
    assert two.num_bytes >= 8 * 64 * 4 + 2 * 64 * 64 * 4
    assert four.num_bytes >= 8 * 64 * 4 + 4 * 64 * 64 * 4
    assert two.num_unknown == four.num_unknown == 0


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
    passed_on = 8 * size * 4  # A batch of activations, or of their gradients.
    assert passed_on < size * size * 4
    # Keras creates the zeros that it resets accumulators to on the default device.
    zeros = 2 * size * size * 4 if name == "accumulating" else 0
    edges = edges_of(report)
    assert passed_on <= edges[NAMES[0], NAMES[1]].num_bytes < passed_on + zeros + 1024
    assert passed_on <= edges[NAMES[1], NAMES[0]].num_bytes < passed_on + 1024
    assert all(edge.num_unknown == 0 for edge in report.edges)


def test_compiled_by_xla():
    model = make_nested()
    model.compile("adam", "mse", jit_compile=True)
    report = report_of(model)
    assert layers_of(report)["head"].got == ((NAMES[0],),)
    assert report.source == "executed graph"


def test_every_worker_writes_its_own_report(tmp_path):
    cluster.finish(cluster.start_workers(2, "placement", tmp_path))
    for index in range(2):
        text = (tmp_path / f"placement_worker_{index}.json").read_text()
        report = km.PlacementReport.from_json(text)
        assert layers_of(report)["first"].got == ((f"worker:{index}/CPU:0",),)
        assert report.collectives
        assert (tmp_path / f"placement_worker_{index}").is_dir()


def test_parameter_servers(tmp_path):
    cluster.run("parameter_server.py", tmp_path, 0)
    report = km.PlacementReport.from_json((tmp_path / "logs" / "placement.json").read_text())
    layers = layers_of(report)
    on = {device for layer in layers.values() for device in layer.weights_on}
    assert on == {"ps:0/CPU:0", "ps:1/CPU:0"}
    assert layers["first"].got[0][0] == "worker:0/CPU:0"
    assert report.source == "traced graph"


def test_the_report_agrees_with_the_log_of_tensorflow(tmp_path):
    """For functions that remain calls, and are placed when they are called."""
    printed = cluster.run("placement_log.py", tmp_path / "ops.json")
    ops = in_layers(json.loads((tmp_path / "ops.json").read_text()))
    share, elsewhere = compare_with_log(ops, printed)
    assert len(ops) > 40
    assert share > 0.9
    assert elsewhere == []
