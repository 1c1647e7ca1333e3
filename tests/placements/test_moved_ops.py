"""Ops, weights and slots that are not where they should be, and the warnings about them."""

import keras
import pytest
import tensorflow as tf
from pinned import make_model
from placed import data, layers_of, report_of
from simulated import NAMES

import keras_mgpu as km
from keras_mgpu.placements.observation import PlacementError


@pytest.fixture(scope="module")
def without_gpus():
    """The report of two layers and an op without GPU kernel that ask for GPUs."""
    keras.utils.set_random_seed(0)
    return report_of(make_model("/GPU:8", "/GPU:9", text=True))


def test_devices_asked_for_and_got_are_both_reported_for_every_op(without_gpus):
    layers = layers_of(without_gpus)
    assert layers["first"].asked == (("GPU:8",),)
    assert layers["second"].asked == (("GPU:9",),)
    ops = [op for op in without_gpus.ops if op.asked.startswith("GPU") and op.layer != "text"]
    assert {op.layer for op in ops} == {"first", "second"}
    assert {op.op for op in ops} >= {"MatMul", "Relu"}
    for op in ops:
        assert op.got == NAMES[0]
        assert op.reason == f"{op.asked} is not available"


def test_every_moved_op_is_counted_once(without_gpus):
    moved = [op for op in without_gpus.ops if op.asked.startswith("GPU")]
    assert sum(each.count for each in without_gpus.moved) == len(moved)
    assert any(f"GPU:9 but ran on {NAMES[0]}" in each for each in without_gpus.warnings)


def test_an_op_without_gpu_kernel(without_gpus):
    reasons = {(each.layer, each.op): each.reason for each in without_gpus.moved}
    assert reasons["text", "AsString"] == "no GPU kernel for AsString"
    assert reasons["text", "StringToNumber"] == "no GPU kernel for StringToNumber"
    assert reasons["first", "Relu"] == "GPU:8 is not available"
    assert any("no GPU kernel for AsString" in each for each in without_gpus.warnings)


def test_without_soft_placement_the_error_names_the_layer():
    models = make_model("/CPU:0", "/GPU:9"), make_model("/GPU:8", "/CPU:0", text=True)
    tf.config.set_soft_device_placement(False)
    try:
        with pytest.raises(PlacementError, match=r"of second asked for GPU:9: GPU:9 is not avail"):
            report_of(models[0])
        with pytest.raises(PlacementError, match=r"1 op of text asked for GPU:8: no GPU kernel"):
            km.placement(models[1], data()[0])
    finally:
        tf.config.set_soft_device_placement(True)


def test_the_error_names_only_ops_that_cannot_be_placed_and_each_once(devices):
    model = make_model("/GPU:8", devices[1], text=True)
    tf.config.set_soft_device_placement(False)
    try:
        with pytest.raises(PlacementError) as error:
            report_of(model)
    finally:
        tf.config.set_soft_device_placement(True)
    lines = [line.strip() for line in str(error.value).splitlines() if "asked for" in line]
    assert "1 op of text asked for GPU:8: no GPU kernel for AsString" in lines
    assert {line.split(" asked for ")[1] for line in lines} == {
        "GPU:8: GPU:8 is not available",
        "GPU:8: no GPU kernel for AsString",
        "GPU:8: no GPU kernel for StringToNumber",
    }


def test_an_uneven_split_with_slots_far_from_their_weights(devices):
    report = report_of(make_model(devices[0], devices[1], units=512))
    totals = {each.device: each for each in report.devices}
    all_bytes = sum(each.num_bytes for each in totals.values())
    share = round(100 * totals[NAMES[0]].num_bytes / all_bytes)
    assert share > 65
    assert any(f"{NAMES[0]} holds {share} % of the memory" in each for each in report.warnings)
    assert totals[NAMES[0]].weight_bytes == 4 * 512 * 4
    assert totals[NAMES[1]].weight_bytes == 512 * 2 * 4
    # Activations are where the forward pass ran, though gradients run elsewhere.
    assert totals[NAMES[0]].activation_bytes == 8 * 512 * 4
    assert totals[NAMES[1]].activation_bytes == 8 * 2 * 4
    second = layers_of(report)["second"]
    assert (second.weights_on, second.slots_on) == ((NAMES[1],), (NAMES[0],))
    said = f"second (weights on {NAMES[1]}, slots on {NAMES[0]})"
    assert any(said in each for each in report.warnings)


def test_a_pipeline_keeps_slots_with_their_weights(devices):
    split = km.PipelineSplit(make_model(devices[0], devices[0]), devices[:2], cuts=["first"])
    split.compile("adam", "mse")
    assert not [each for each in report_of(split).warnings if "slots" in each]
