"""Where layers run on GPUs, held against what TensorFlow says."""

import json

import cluster
from placed import compare_with_log, in_layers


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
