"""Where layers run on GPUs and what is copied, held against TensorFlow and the simulated GPUs."""

import json
from collections import Counter

import cluster
import keras
import numpy as np
import pytest
import simgpu
import tensorflow as tf
from pinned import ToText, make_model
from placed import compare_with_log, data, edges_of, in_layers, layers_of

import keras_mgpu as km
from keras_mgpu.placements.observation import PlacementError


def test_the_report_agrees_with_the_log_of_tensorflow(tmp_path):
    printed = cluster.run("gpu_placement_log.py", tmp_path / "ops.json")
    ops = in_layers(json.loads((tmp_path / "ops.json").read_text()))
    share, elsewhere = compare_with_log(ops, printed)
    assert len(ops) > 300
    assert share > 0.9
    assert elsewhere == []
    reasons = {(op["layer"], op["op"]): op["reason"] for op in ops if op["reason"]}
    assert reasons == {
        ("hashed", "AsString"): "no GPU kernel for AsString",
        ("hashed", "StringToHashBucketFast"): "no GPU kernel for StringToHashBucketFast",
        ("text", "AsString"): "no GPU kernel for AsString",
        ("text", "StringToNumber"): "no GPU kernel for StringToNumber",
        ("nowhere", "MatMul"): "GPU:7 is not available",
        ("nowhere", "Relu"): "GPU:7 is not available",
        ("nowhere", "ReluGrad"): "GPU:7 is not available",
    }


def fit_and_count(model, x, y, num_steps):
    """Bytes and number of copies between each pair of devices while a model trains."""
    with tf.device("/CPU:0"):
        batches = tf.data.Dataset.from_tensors((x, y)).repeat(num_steps)
    simgpu.reset()
    model.fit(batches, verbose=0, shuffle=False)
    found = Counter()
    for device in simgpu.stats():
        name = f"GPU:{device['device']}"
        traffic = {("CPU:0", name): device["h2d"], (name, "CPU:0"): device["d2h"]}
        traffic.update({(name, f"GPU:{index}"): each for index, each in device["d2d"].items()})
        for pair, each in traffic.items():
            found[pair, "num_tensors"] += each["n"]
            found[pair, "num_bytes"] += each["bytes"]
    return found


def reported_and_counted(model, x, y):
    """For each pair of devices what the report says of a step, and what was copied in one.

    What `fit` copies once, whatever the number of steps, is left out.
    """
    logger = km.DevicePlacementLogger(verbose=0)
    model.fit(x, y, batch_size=len(x), verbose=0, callbacks=[logger])
    fit_and_count(model, x, y, 1)  # Traces it for the other kind of data.
    few, many = (fit_and_count(model, x, y, num_steps) for num_steps in (2, 6))
    reported = {
        (pair, field): getattr(edge, field)
        for pair, edge in edges_of(logger.report).items()
        for field in ("num_tensors", "num_bytes")
    }
    assert all(edge.num_unknown == 0 for edge in logger.report.edges)
    return {
        key: (reported.get(key, 0), (many[key] - few[key]) / 4)
        for key in sorted({*reported, *many})
        if key in reported or many[key] != few[key]
    }


def make_split(devices, micro_batches, text):
    inputs = keras.Input((4,))
    x = keras.layers.Dense(64, activation="relu")(inputs)
    x = keras.layers.LayerNormalization(name="norm")(x)
    if text:
        x = ToText(None)(x)
    x = keras.layers.Dropout(0.1)(x)
    model = keras.Model(inputs, keras.layers.Dense(2)(x))
    split = km.PipelineSplit(model, devices[:2], micro_batches=micro_batches, cuts=["norm"])
    split.compile("adam", "mse")
    return split


@pytest.mark.parametrize("text", [False, True], ids=["on the GPU", "by way of the host"])
@pytest.mark.parametrize("micro_batches", [2, 4])
def test_copies_of_a_pipeline(devices, micro_batches, text):
    split = make_split(devices, micro_batches, text)
    found = reported_and_counted(split, *data(8))
    activations = 8 * 64 * 4
    for (pair, field), (reported, counted) in found.items():
        if "CPU:0" not in pair:
            assert reported == counted, (pair, field)
        # The loss is read after the step. Inside of stages, TensorFlow computes some numbers once
        # and for all that the traced function computes anew.
        elif field == "num_tensors":
            assert abs(reported - counted) <= 3 * micro_batches + 3, pair
        else:
            assert abs(reported - counted) <= 8 * micro_batches + 16, pair
    through_host = found[("GPU:1", "CPU:0"), "num_bytes"][0]
    assert through_host >= activations if text else through_host < activations


def test_copies_of_a_transformer(devices):
    tokens = keras.Input((16,), dtype="int32")
    x = keras.layers.Embedding(50, 32, mask_zero=True)(tokens)
    for _ in range(2):
        attention = keras.layers.MultiHeadAttention(2, 16)(x, x)
        x = keras.layers.LayerNormalization()(keras.layers.Add()([x, attention]))
        x = keras.layers.Dense(32, activation="gelu")(x)
    outputs = keras.layers.Dense(3)(keras.layers.GlobalAveragePooling1D()(x))
    split = km.PipelineSplit(keras.Model(tokens, outputs), devices[:2], micro_batches=4)
    split.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 50, (8, 16)).astype("int32"), rng.integers(0, 3, 8)
    for (pair, field), (reported, counted) in reported_and_counted(split, x, y).items():
        if "CPU:0" not in pair:
            assert reported == counted, (pair, field)
        elif field == "num_tensors":
            # Of each micro-batch, five numbers that TensorFlow computes once and for all.
            assert abs(reported - counted) <= 5 * 4, pair


def test_copies_of_a_model_that_is_not_split(devices):
    model = make_model(devices[0], devices[1], units=64, text=True)
    for (pair, field), (reported, counted) in reported_and_counted(model, *data(8)).items():
        after_the_step = 0 if "CPU:0" not in pair else 4 if field == "num_tensors" else 16
        assert 0 <= counted - reported <= after_the_step, (pair, field)


def test_layers_on_gpus_and_an_op_that_has_to_leave_one():
    report = km.placement(make_model("/GPU:0", "/GPU:1", text=True), data()[0])
    km.assert_placement(report, {"first": "GPU:0", "second": "GPU:1"})
    assert layers_of(report)["text"].got == (("CPU:0", "GPU:0"),)
    with pytest.raises(AssertionError, match=r"text is on CPU:0, GPU:0 instead of GPU:0"):
        km.assert_placement(report, {"text": "GPU:0"})
    assert [(each.op, each.reason) for each in report.moved] == [
        ("AsString", "no GPU kernel for AsString"),
        ("StringToNumber", "no GPU kernel for StringToNumber"),
    ]


def test_without_soft_placement_the_error_names_what_has_no_gpu_kernel():
    model = make_model("/GPU:0", "/GPU:1", text=True)
    tf.config.set_soft_device_placement(False)
    try:
        with pytest.raises(PlacementError) as error:
            model.fit(*data(), verbose=0, callbacks=[km.DevicePlacementLogger(verbose=0)])
    finally:
        tf.config.set_soft_device_placement(True)
    lines = [line.strip() for line in str(error.value).splitlines() if "asked for" in line]
    assert lines == [
        "1 op of text asked for GPU:0: no GPU kernel for AsString",
        "1 op of text asked for GPU:0: no GPU kernel for StringToNumber",
    ]
