"""The report as data and as a table, its warnings, and the differences between two."""

import json

import pytest

from keras_mgpu.placements.differences import differences
from keras_mgpu.placements.report import PlacementReport
from keras_mgpu.placements.report_parts import (
    Collective,
    DeviceTotal,
    Edge,
    LayerPlacement,
    MovedOps,
)
from keras_mgpu.placements.report_warnings import far_slots, moved_ops, percent, uneven_memory
from keras_mgpu.placements.table import MAX_LINES, markdown, renderables
from keras_mgpu.system.terminal import render


def layer(path, device="GPU:0", kind="Dense", **fields):
    fields = {"weights_on": (device,), "slots_on": (device,), **fields}
    at = ((device,),)
    return LayerPlacement(path, kind, asked=at, got=at, num_ops=3, **fields)


def report(*layers, **fields):
    return PlacementReport("net", layers=layers, **fields)


FULL = report(
    layer("first", num_parameters=10, weight_bytes=40, slot_bytes=80, activation_bytes=16),
    layer("in/second", "GPU:1", stages=(0, 1), inputs=("first",)),
    strategy="MirroredStrategy",
    num_samples=4,
    devices=(DeviceTotal("GPU:0", 1, 3, 40, 80, 16), DeviceTotal("GPU:1", 1, 3)),
    moved=(MovedOps("first", "AsString", "GPU:0", "CPU:0", 2, "no GPU kernel for AsString"),),
    edges=(Edge("GPU:0", "GPU:1", 2, 64, 1, "NVLink"),),
    collectives=(Collective("GPU:0", "CollectiveReduceV2", 1, 40),),
)


def test_json_and_back():
    assert PlacementReport.from_json(FULL.to_json()) == FULL
    assert json.loads(FULL.to_json())["warnings"] == list(FULL.warnings)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "Not a placement report"),
        ("[1]", "Not a placement report"),
        ('{"version": 1, "warnings": []}', "Not a placement report"),
        (
            FULL.to_json().replace('"version": 1', '"version": 2'),
            "version 2, and this package reads version 1",
        ),
        (FULL.to_json().replace('"path"', '"patch"'), "Not a placement report"),
        (FULL.to_json().replace('"num_ops": 3', '"num_ops": "many"'), "num_ops is 'many'"),
        ('{"version": 1, "warnings": [], "layers": [1]}', "Not a placement report"),
        ('{"version": 2}', "version 2"),
    ],
)
def test_text_that_is_not_a_report(text, message):
    with pytest.raises(ValueError, match=message):
        PlacementReport.from_json(text)


def devices(**sizes):
    return tuple(
        DeviceTotal(name.replace("_", ":"), weight_bytes=size) for name, size in sizes.items()
    )


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ({"GPU_0": 71, "GPU_1": 29}, "GPU:0 holds 71 % of the memory"),
        ({"GPU_0": 60, "GPU_1": 40}, None),
        ({"GPU_0": 40, "GPU_1": 20, "GPU_2": 20, "GPU_3": 20}, "GPU:0 holds 40 % of the memory"),
        ({"CPU_0": 900, "GPU_0": 50, "GPU_1": 50}, None),
        ({"CPU_0": 80, "CPU_1": 20, "CPU_2": 0}, "CPU:0 holds 80 % of the memory"),
        ({"GPU_0": 100}, None),
        ({"GPU_0": 0, "GPU_1": 0}, None),
    ],
)
def test_uneven_memory(sizes, expected):
    found = uneven_memory(devices(**sizes))
    assert [text for text in found if expected and text.startswith(expected)] == list(found)
    assert bool(found) == (expected is not None)


def test_far_slots_name_the_first_layer_and_count_the_others():
    far = [layer(f"dense_{k}", "GPU:1", slots_on=("CPU:0",)) for k in range(3)]
    (text,) = far_slots([layer("near"), *far])
    assert text.endswith("dense_0 (weights on GPU:1, slots on CPU:0), and 2 more.")
    assert far_slots([layer("near")]) == []


def test_many_layers_with_moved_ops_are_folded():
    moves = [MovedOps(f"dense_{k}", "MatMul", "GPU:9", "GPU:0", 2, "why") for k in range(7)]
    text = "14 ops of dense_0 … dense_6 (7 layers) asked for GPU:9 but ran on GPU:0: why."
    assert moved_ops(moves) == [text]
    assert moved_ops(moves[:1]) == ["2 ops of dense_0 asked for GPU:9 but ran on GPU:0: why."]


def test_percent():
    assert (percent(1, 3), percent(0, 0)) == ("33 %", "0 %")


def lines_of(report):
    return render(*renderables(report)).splitlines()


def test_at_most_sixty_lines_and_odd_ones_among_them():
    layers = [layer(f"block_{b}/layer_{k}", f"GPU:{b // 6}") for b in range(48) for k in range(12)]
    layers[100] = layer(layers[100].path, "CPU:0")
    many = [layer(f"odd_{k}", f"GPU:{k % 8}", num_parameters=k) for k in range(300)]
    totals = tuple(DeviceTotal(f"GPU:{k}", weight_bytes=k) for k in range(8))
    edges = tuple(Edge(f"GPU:{k}", f"GPU:{j}", 1, k) for k in range(8) for j in range(8) if j != k)
    moved = tuple(MovedOps(f"l{k}", "Op", "GPU:0", "CPU:0", 1, f"reason {k}") for k in range(40))
    fields = {"devices": totals, "edges": edges, "moved": moved}
    for rows in (layers, many, layers + many):
        lines = lines_of(report(*rows, **fields))
        assert len(lines) <= MAX_LINES
    lines = lines_of(report(*layers, **fields))
    assert any("block_8/layer_4" in line and "CPU:0" in line for line in lines)
    assert any(line.startswith("block_0/layer_0 … block_5/layer_11 (72 times)") for line in lines)


def test_the_table_shows_what_there_is():
    text = render(*renderables(FULL))
    for word in (
        "first",
        "in/second",
        "0, 1",
        "NVLink",
        "64 B and 1 unknown",
        "CollectiveReduceV2",
    ):
        assert word in text
    assert "! 2 ops of first asked for GPU:0 but ran on CPU:0: no GPU kernel for AsString." in text
    assert "| in/second |" in markdown(FULL)


def test_differences_between_two_runs():
    after = report(
        layer("first", num_parameters=10, weight_bytes=40, slot_bytes=80, activation_bytes=16),
        layer("in/second", "GPU:0", stages=(0, 1), inputs=("first",)),
        layer("third"),
        num_samples=4,
        devices=FULL.devices[:1],
    )
    found = {(change.where, change.what): change for change in differences(FULL, after)}
    assert found["in/second", "got"].before == "GPU:1"
    assert found["in/second", "got"].after == "GPU:0"
    assert ("third", "added") in found
    assert ("GPU:1", "gone") in found
    assert found["(all)", "strategy"].after == ""
    assert not [where for where, _ in found if where == "first"]
    assert differences(FULL, FULL) == []
