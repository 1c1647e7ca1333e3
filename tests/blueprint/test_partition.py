"""Plans: the best there is, checked against every plan there is, and cuts by name."""

import json
import random
import sys
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_mgpu.blueprint.partition import (
    LayerCost,
    PartitionPlan,
    StagePlan,
    balance,
    cut_after,
    readable_bytes,
)


def layers(*names):
    return [LayerCost(name, compute=1, parameters=0, weight_bytes=0, cut_bytes=1) for name in names]


def costs_of(computes, cut_bytes):
    return [
        LayerCost(f"layer_{index}", compute, 0, 0, bytes_)
        for index, (compute, bytes_) in enumerate(zip(computes, cut_bytes, strict=True))
    ]


def rank(costs, ends):
    """What makes a plan good, the most important first."""
    starts = (0, *ends[:-1])
    return (
        max(
            sum(c.compute for c in costs[start:end])
            for start, end in zip(starts, ends, strict=True)
        ),
        sum(costs[end - 1].cut_bytes for end in ends[:-1]),
        ends,
    )


def every_ends(num_layers, num_stages):
    for cuts in combinations(range(1, num_layers), num_stages - 1):
        yield (*cuts, num_layers)


# Few distinct numbers make many plans equal, so that the ties have to be broken.
few = st.integers(0, 3)
wide = st.integers(0, 10**18)
layer_lists = st.one_of(
    st.lists(st.tuples(numbers, cut_numbers), min_size=1, max_size=12)
    for numbers in (few, wide)
    for cut_numbers in (few, wide)
)


@settings(max_examples=500)
@given(layer_lists, st.data())
def test_balance_equals_brute_force(pairs, data):
    costs = costs_of(*zip(*pairs, strict=True))
    num_stages = data.draw(st.integers(1, len(costs)))
    best = min(every_ends(len(costs), num_stages), key=lambda ends: rank(costs, ends))
    assert balance(costs, num_stages).ends == best


@pytest.mark.parametrize(
    ("computes", "cut_bytes", "num_stages", "ends"),
    [
        # The largest stage counts before the bytes.
        ([2, 2, 2, 2], [0, 9, 0, 0], 2, (2, 4)),
        # An even split is found though a cheaper one is almost even.
        ([3, 1, 1, 3], [9, 9, 0, 0], 2, (2, 4)),
        # Both ways the largest stage is 5: the cut with fewer bytes is taken, though later.
        ([1, 5, 1], [9, 8, 0], 2, (2, 3)),
        # Equal in both: the earlier cut.
        ([1, 0, 0, 1], [7, 7, 7, 0], 2, (1, 4)),
        # The least bottleneck needs two stages only; a third is still made.
        ([9, 1, 1], [5, 4, 0], 3, (1, 2, 3)),
        # What crosses no cut, behind the last layer, costs nothing.
        ([1, 1], [3, 10**9], 2, (1, 2)),
        ([0, 0, 0], [2, 1, 0], 2, (2, 3)),
    ],
)
def test_balance_by_hand(computes, cut_bytes, num_stages, ends):
    assert balance(costs_of(computes, cut_bytes), num_stages).ends == ends


def test_balance_is_exact_where_floats_are_not():
    big = 2**60
    # As floats, both sides of either cut would be the same number.
    assert balance(costs_of([big, 1, big + 2], [0, 0, 0]), 2).ends == (2, 3)
    assert balance(costs_of([big + 2, 1, big], [0, 0, 0]), 2).ends == (1, 3)


def lines_run(function):
    """How many lines of Python it runs: a measure of work that no neighbour changes."""
    count = 0

    def trace(frame, event, argument):
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        function()
    finally:
        sys.settrace(before)
    return count


def any_layers(num):
    numbers = random.Random(0)
    compute = [numbers.randrange(10**12) for _ in range(num)]
    return costs_of(compute, [numbers.randrange(10**9) for _ in range(num)])


def free_layers(num):
    """Every cut is as good as any other, so nothing can be ruled out early."""
    return costs_of([0] * num, [1] * num)


@pytest.mark.parametrize("make", [any_layers, free_layers])
def test_four_times_as_many_layers_take_about_four_times_the_work(make):
    few, many = (lines_run(lambda: balance(make(num), 8)) for num in (250, 1000))
    assert many < 6 * few


def test_balance_of_a_thousand_layers():
    plan = balance(any_layers(1000), 8)
    assert plan.num_stages == 8
    assert plan.imbalance < 1.02
    assert balance(free_layers(1000), 8).ends == (1, 2, 3, 4, 5, 6, 7, 1000)


def test_stage_sums():
    costs = [
        LayerCost("a", 1, 10, 40, 7),
        LayerCost("b", 2, 20, 80, 8),
        LayerCost("c", 3, 30, 120, 9),
    ]
    assert balance(costs, 2).stages == (
        StagePlan(("a", "b"), compute=3, parameters=30, weight_bytes=120, cut_bytes=8),
        StagePlan(("c",), compute=3, parameters=30, weight_bytes=120, cut_bytes=0),
    )


def test_plan_properties():
    plan = cut_after(layers("a", "b", "c", "d"), ["a"])
    assert plan.num_stages == 2
    assert plan.cuts == ("a",)
    assert plan.ends == (1, 4)
    assert plan.imbalance == 1.5


def test_imbalance_of_no_compute_is_even():
    assert balance(costs_of([0, 0], [0, 0]), 2).imbalance == 1


@pytest.mark.parametrize("num_stages", [0, -1])
def test_balance_refuses_no_stages(num_stages):
    with pytest.raises(ValueError, match=rf"at least 1. Received: num_stages={num_stages}"):
        balance(layers("a"), num_stages)


@pytest.mark.parametrize("num_stages", [True, "2", 2.0, None])
def test_balance_refuses_what_is_no_count(num_stages):
    with pytest.raises(TypeError, match=r"`num_stages` must be an integer. Received: num_stages="):
        balance(layers("a", "b"), num_stages)


def test_balance_refuses_more_stages_than_layers():
    with pytest.raises(ValueError, match=r"only 2 layers.*Received: num_stages=3"):
        balance(layers("a", "b"), 3)


def test_no_layers():
    with pytest.raises(ValueError, match="at least one layer"):
        balance([], 1)
    with pytest.raises(ValueError, match="at least one layer"):
        cut_after([], [])


def test_repeated_layer_names():
    with pytest.raises(ValueError, match=r"unique. Received: repeated=\['a'\]"):
        balance(layers("a", "b", "a"), 2)
    with pytest.raises(ValueError, match=r"unique. Received: repeated=\['a'\]"):
        cut_after(layers("a", "b", "a"), ["b"])


@pytest.mark.parametrize("field", ["compute", "parameters", "weight_bytes", "cut_bytes"])
def test_layer_cost_refuses_wrong_numbers(field):
    numbers = {"compute": 1, "parameters": 1, "weight_bytes": 1, "cut_bytes": 1}
    with pytest.raises(TypeError, match=rf"of layer 'a' must be an integer. Received: {field}=1.0"):
        LayerCost("a", **{**numbers, field: 1.0})
    with pytest.raises(
        ValueError, match=rf"of layer 'a' must be non-negative. Received: {field}=-1"
    ):
        LayerCost("a", **{**numbers, field: -1})


NESTED = layers(
    "input",
    "resnet/conv",
    "resnet/block/conv",
    "resnet/block/relu",
    "dense",
    "head/norm",
    "dense@2",
    "head/dense",
    "softmax",
)


@pytest.mark.parametrize(
    ("names", "ends"),
    [
        ([], (9,)),
        (["dense"], (5, 9)),
        (["dense@2"], (7, 9)),
        (["head/dense"], (8, 9)),
        (["relu"], (4, 9)),
        (["block/relu"], (4, 9)),
        (["block/conv"], (3, 9)),
        (["resnet/conv"], (2, 9)),
        (["resnet"], (4, 9)),
        (["block"], (4, 9)),
        (["resnet/block"], (4, 9)),
        (["head"], (8, 9)),
        (["head", "input", "resnet"], (1, 4, 8, 9)),
        (("norm", "dense"), (5, 6, 9)),
    ],
)
def test_cut_after(names, ends):
    assert cut_after(NESTED, names).ends == ends


@given(layer_lists, st.data())
def test_cut_after_takes_the_cuts_of_any_plan(pairs, data):
    costs = costs_of(*zip(*pairs, strict=True))
    plan = balance(costs, data.draw(st.integers(1, len(costs))))
    assert cut_after(costs, data.draw(st.permutations(plan.cuts))) == plan


def test_layer_wins_over_nested_model_of_its_name():
    assert cut_after(layers("a", "b", "a/c", "d"), ["a"]).ends == (1, 4)


def test_call_of_a_nested_layer_wins_over_its_repetition():
    assert cut_after(layers("m/dense", "m/dense@2", "out"), ["dense"]).ends == (1, 3)


def test_unknown_name_suggests_the_near_one():
    with pytest.raises(ValueError, match=r"Did you mean 'dense_1'\? Received: 'dens_1' in cuts"):
        cut_after(layers("input", "dense_1", "out"), ["dens_1"])


def test_unknown_name_suggests_the_near_path():
    with pytest.raises(ValueError, match=r"Did you mean 'resnet50/conv1_conv'\?"):
        cut_after(layers("resnet50/conv1_conv", "out"), ["conv1_con"])


def test_unknown_name_suggests_a_name_that_can_be_used():
    costs = layers("conv", "a/conv", "out")
    with pytest.raises(ValueError, match=r"Did you mean 'conv'( or 'a/conv')?\?"):
        cut_after(costs, ["convv"])


def test_unknown_name_lists_layers():
    with pytest.raises(ValueError, match=r"The layers are 'alpha', 'beta'\. Received: 'xyz'"):
        cut_after(layers("alpha", "beta"), ["xyz"])


def test_unknown_name_lists_some_of_many_layers():
    costs = layers(*(f"layer_{index}" for index in range(30)))
    with pytest.raises(ValueError, match=r"'layer_0', .*'layer_7' and 22 more\.") as error:
        cut_after(costs, ["xyz"])
    assert "layer_8" not in str(error.value)


def test_ambiguous_name_lists_the_candidates():
    with pytest.raises(ValueError, match=r"\['resnet/conv', 'resnet/block/conv'\].*: 'conv' in"):
        cut_after(NESTED, ["conv"])


@pytest.mark.parametrize(
    "names", [["dense", "dense"], ["relu", "resnet"], ["block", "resnet/block/relu"]]
)
def test_same_cut_twice(names):
    with pytest.raises(ValueError, match=f"{names[0]!r} and {names[1]!r} both cut after"):
        cut_after(NESTED, names)


def test_cut_after_the_last_layer():
    with pytest.raises(ValueError, match=r"the last layer, 'softmax', would leave an empty stage"):
        cut_after(NESTED, ["dense", "softmax"])


def test_cut_after_the_last_nested_model():
    with pytest.raises(ValueError, match="the last layer, 'm/b', would leave an empty stage"):
        cut_after(layers("a", "m/b"), ["m"])


@pytest.mark.parametrize("names", ["dense", None, 3])
def test_cuts_must_be_a_list(names):
    with pytest.raises(TypeError, match=f"list of layer names. Received: cuts={names!r}"):
        cut_after(NESTED, names)


@pytest.mark.parametrize("name", [3, None, b"dense"])
def test_cuts_must_hold_names(name):
    with pytest.raises(TypeError, match=f"only layer names. Received: {name!r} in cuts="):
        cut_after(NESTED, ["input", name])


def test_json_there_and_back():
    plan = balance(NESTED, 3)
    assert PartitionPlan.from_json(plan.to_json()) == plan
    assert json.loads(plan.to_json())["stages"][0]["layers"] == list(plan.stages[0].layers)


@pytest.mark.parametrize("text", ["{}", "[]", "3", '{"stages": [{}]}', '{"stages": 3}', "no JSON"])
def test_foreign_json(text):
    with pytest.raises(ValueError, match=r"output of `PartitionPlan.to_json`|Expecting value"):
        PartitionPlan.from_json(text)


@pytest.mark.parametrize("stages", [(), (StagePlan((), 0, 0, 0, 0),)])
def test_plan_refuses_nothing(stages):
    with pytest.raises(ValueError, match="at least one"):
        PartitionPlan(stages)


def test_table():
    plan = PartitionPlan(
        (
            StagePlan(("input", "conv", "relu"), 1_500_000_000, 23_456, 93_824, 3 * 2**20),
            StagePlan(("long_name",), 500_000_000, 1_000, 4_000, 0),
        )
    )
    assert (
        f"\n{plan}\n"
        == """
stage  layers  first      last       compute  share  parameters   weights  sent per sample
    0       3  input      relu         1.5 G  75.0%      23,456  91.6 KiB          3.0 MiB
    1       1  long_name  long_name  500.0 M  25.0%       1,000   3.9 KiB                -
"""
    )


def test_table_with_devices():
    plan = balance(layers("a", "b"), 2)
    header, first, second = plan.table(devices=["/CPU:0", "/GPU:11"]).splitlines()
    assert header.split()[1] == "device"
    assert first.index("/CPU:0") == second.index("/GPU:11") == header.index("device")


def test_table_wants_a_device_for_each_stage():
    with pytest.raises(ValueError, match=r"2 entries, one per stage. Received: devices=\['/C"):
        balance(layers("a", "b"), 2).table(devices=["/CPU:0"])


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (2**20 - 1, "1.0 MiB"),
        (5 * 2**30, "5.0 GiB"),
        (3 * 2**50, "3072.0 TiB"),
    ],
)
def test_readable_bytes(count, text):
    assert readable_bytes(count) == text
