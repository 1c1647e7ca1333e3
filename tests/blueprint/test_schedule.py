"""Schedules: the named ones as pictures, and what is refused."""

import json
import re

import pytest

from keras_mgpu.blueprint.named_schedules import (
    SCHEDULES,
    forwards_first,
    forwards_only,
    gpipe,
    interleaved,
    make,
    one_f_one_b,
    recomputing,
    zero_bubble,
)
from keras_mgpu.blueprint.schedule import Op, Schedule


def lanes_of(picture):
    """Reads one lane per line."""
    return tuple(tuple(map(Op.parse, line.split())) for line in picture.strip().splitlines())


def schedule_of(picture, num_stages, num_micro_batches):
    return Schedule("mine", num_stages, num_micro_batches, lanes_of(picture))


def refusal(picture, num_stages, num_micro_batches):
    """Returns what is said about a broken schedule: the first line, and the grid below."""
    with pytest.raises(ValueError, match="The schedule 'mine' ") as error:
        schedule_of(picture, num_stages, num_micro_batches)
    line, *grid = str(error.value).splitlines()
    return line, grid


def test_gpipe():
    assert gpipe(3, 4).lanes == lanes_of(
        """
        0F0 0F1 0F2 0F3 0B0 0B1 0B2 0B3
        1F0 1F1 1F2 1F3 1B0 1B1 1B2 1B3
        2F0 2F1 2F2 2F3 2B0 2B1 2B2 2B3
        """
    )


def test_one_f_one_b():
    assert one_f_one_b(4, 6).lanes == lanes_of(
        """
        0F0 0F1 0F2 0F3 0B0 0F4 0B1 0F5 0B2 0B3 0B4 0B5
        1F0 1F1 1F2 1B0 1F3 1B1 1F4 1B2 1F5 1B3 1B4 1B5
        2F0 2F1 2B0 2F2 2B1 2F3 2B2 2F4 2B3 2F5 2B4 2B5
        3F0 3B0 3F1 3B1 3F2 3B2 3F3 3B3 3F4 3B4 3F5 3B5
        """
    )


def test_one_f_one_b_with_fewer_micro_batches_than_stages():
    assert one_f_one_b(4, 2).lanes == lanes_of(
        """
        0F0 0F1 0B0 0B1
        1F0 1F1 1B0 1B1
        2F0 2F1 2B0 2B1
        3F0 3B0 3F1 3B1
        """
    )


def test_forwards_only():
    assert forwards_only(gpipe(2, 3)).lanes == lanes_of(
        """
        0F0 0F1 0F2
        1F0 1F1 1F2
        """
    )


@pytest.mark.parametrize("build", [gpipe, one_f_one_b])
@pytest.mark.parametrize("num_stages", range(1, 7))
@pytest.mark.parametrize("num_micro_batches", range(1, 10))
def test_named_schedules_are_whole_and_can_run(build, num_stages, num_micro_batches):
    schedule = build(num_stages, num_micro_batches)
    order = schedule.order()
    assert len(order) == 2 * num_stages * num_micro_batches
    assert set(order) == {
        Op(kind, stage, index)
        for kind in "FB"
        for stage in range(num_stages)
        for index in range(num_micro_batches)
    }
    position = {op: at for at, op in enumerate(order)}
    for stage in range(num_stages):
        assert {op.stage for op in schedule.lanes[stage]} == {stage}
        assert sorted(schedule.lanes[stage], key=position.get) == list(schedule.lanes[stage])
    for (kind, stage, index), at in position.items():
        if kind == "F" and stage > 0:
            assert position["F", stage - 1, index] < at
        if kind == "B":
            assert position["F", stage, index] < at
        if kind == "B" and stage < num_stages - 1:
            assert position["B", stage + 1, index] < at


def test_order_goes_in_ticks():
    assert " ".join(map(str, one_f_one_b(2, 2).order())) == (
        "0F0  0F1 1F0  1B0  0B0 1F1  1B1  0B1".replace("  ", " ")
    )


def test_needs():
    schedule = one_f_one_b(3, 2)
    assert schedule.needs(Op("F", 0, 1)) == ()
    assert schedule.needs(Op("F", 2, 1)) == (Op("F", 1, 1),)
    assert schedule.needs(Op("B", 2, 1)) == (Op("F", 2, 1),)
    assert schedule.needs(Op("B", 1, 0)) == (Op("F", 1, 0), Op("B", 2, 0))
    assert schedule.needs(Op("W", 1, 0)) == (Op("B", 1, 0),)


def test_weight_gradients_may_come_late():
    picture = """
        0F0 0F1 0B0 0B1 0W0 0W1
        1F0 1B0 1F1 1B1 1W0 1W1
        """
    assert len(schedule_of(picture, 2, 2).order()) == 12


def test_a_lane_may_hold_several_stages():
    schedule = schedule_of(
        """
        0F0 2F0 2B0 0B0
        1F0 1B0
        """,
        num_stages=3,
        num_micro_batches=1,
    )
    assert schedule.lane_of_stage == (0, 1, 0)
    assert " ".join(map(str, schedule.order())) == "0F0 1F0 2F0 2B0 1B0 0B0"


def test_missing_ops_are_shown():
    line, grid = refusal(
        """
        0F0 0F1 0B0
        1F0 1B0 1F1 1B1
        """,
        num_stages=2,
        num_micro_batches=2,
    )
    assert "is missing ops" in line
    assert grid == [
        "lane 0   0F0  0F1  0B0",
        "lane 1   1F0  1B0  1F1  1B1",
        "missing [0B1]",
    ]


def test_weight_gradients_are_all_there_or_none():
    line, grid = refusal("0F0 0F1 0B0 0W0 0B1", num_stages=1, num_micro_batches=2)
    assert "is missing ops" in line
    assert grid[-1] == "missing [0W1]"


def test_weight_gradients_need_backwards():
    _, grid = refusal("0F0 0W0", num_stages=1, num_micro_batches=1)
    assert grid == ["lane 0   0F0  0W0", "missing [0B0]"]


def test_no_ops_at_all():
    _, grid = refusal("", num_stages=1, num_micro_batches=2)
    assert grid == ["missing [0F0][0F1]"]


def test_repeated_op_is_marked():
    line, grid = refusal("0F0 0F1 0F0 0B0 0B1", num_stages=1, num_micro_batches=2)
    assert "repeats ops" in line
    assert grid == ["lane 0  0F0  0F1 [0F0] 0B0  0B1"]


def test_strange_ops_are_marked():
    line, grid = refusal(
        """
        0F0 0F12
        1F0 7F0
        """,
        num_stages=2,
        num_micro_batches=1,
    )
    assert "do not exist for 2 stages and 1 micro-batches" in line
    assert grid == [
        "lane 0  0F0  [0F12]",
        "lane 1  1F0  [7F0]",
    ]


def test_strange_kind_is_marked():
    with pytest.raises(ValueError, match=re.escape("0F0 [0X0]")):
        Schedule("mine", 1, 1, ((Op("F", 0, 0), Op("X", 0, 0)),))


def test_stage_in_two_lanes_is_marked():
    line, grid = refusal(
        """
        0F0 0F1 1B1
        1F0 1F1 1B0 0B0 0B1
        """,
        num_stages=2,
        num_micro_batches=2,
    )
    assert "has a stage in several lanes" in line
    # Both stages are misplaced: their lane is the last one that contains them.
    assert grid == [
        "lane 0 [0F0][0F1][1B1]",
        "lane 1  1F0  1F1  1B0  0B0  0B1",
    ]


def test_backward_before_its_forward_is_marked():
    line, grid = refusal("0F0 0B1 0F1 0B0", num_stages=1, num_micro_batches=2)
    assert "can never finish, because 0B1 waits for 0F1 (" in line
    assert grid == ["lane 0  0F0 [0B1] 0F1  0B0"]


def test_weight_gradient_before_its_backward_is_marked():
    line, _ = refusal("0F0 0W0 0B0", num_stages=1, num_micro_batches=1)
    assert "can never finish, because 0W0 waits for 0B0 (" in line


def test_deadlock_between_lanes_is_marked():
    line, grid = refusal(
        """
        0F0 0B0 0F1 0B1
        1F0 1F1 1B0 1B1
        """,
        num_stages=2,
        num_micro_batches=2,
    )
    assert "can never finish, because 0B0 waits for 1B0, 1F1 waits for 0F1 (" in line
    assert grid == [
        "lane 0  0F0 [0B0] 0F1  0B1",
        "lane 1  1F0 [1F1] 1B0  1B1",
    ]


@pytest.mark.parametrize("kind", ["F", "B", "W"])
def test_op_text_there_and_back(kind):
    op = Op(kind, stage=12, micro_batch=345)
    assert str(op) == f"{op}" == f"12{kind}345"
    assert Op.parse(str(op)) == op


@pytest.mark.parametrize("text", ["", "2F", "F2", "2X0", "2F0 ", "-1F0", "2f0", "2F0B1", "²F0"])
def test_op_refuses_other_text(text):
    with pytest.raises(ValueError, match=re.escape(f"Received: text={text!r}")):
        Op.parse(text)


@pytest.mark.parametrize("name", SCHEDULES)
def test_make(name):
    schedule = make(name, 3, 5)
    assert (schedule.name, schedule.num_stages, schedule.num_micro_batches) == (name, 3, 5)


def test_make_lists_the_names():
    with pytest.raises(ValueError, match=r"one of 'gpipe', '1f1b', .* Received: schedule='1F1B'"):
        make("1F1B", 2, 2)


@pytest.mark.parametrize("build", [gpipe, one_f_one_b])
@pytest.mark.parametrize("value", [True, "8", 8.0, None])
def test_counts_must_be_ints(build, value):
    with pytest.raises(TypeError, match=f"`num_micro_batches` must .* num_micro_batches={value!r}"):
        build(2, value)
    with pytest.raises(TypeError, match=f"`num_stages` must be .* num_stages={value!r}"):
        build(value, 2)


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("value", [0, -3])
def test_counts_must_be_positive(name, value):
    with pytest.raises(ValueError, match=f"at least 1. Received: num_micro_batches={value}"):
        make(name, 2, value)
    with pytest.raises(ValueError, match=f"at least 1. Received: num_stages={value}"):
        make(name, value, 2)


@pytest.mark.parametrize("build", [gpipe, one_f_one_b])
def test_json_there_and_back(build):
    schedule = build(3, 11)
    assert Schedule.from_json(schedule.to_json()) == schedule


def test_json_reads_well():
    assert json.loads(one_f_one_b(1, 2).to_json()) == {
        "name": "1f1b",
        "num_stages": 1,
        "num_micro_batches": 2,
        "lanes": [["0F0", "0B0", "0F1", "0B1"]],
    }


@pytest.mark.parametrize("text", ["{}", "[]", "3", '{"lanes": [3]}', '{"lanes": []}'])
def test_foreign_json(text):
    with pytest.raises(ValueError, match=r"output of `Schedule.to_json`. Received: text="):
        Schedule.from_json(text)


def test_json_with_a_foreign_op():
    with pytest.raises(ValueError, match=r"An op must consist of its stage(.|\n)*Received: text=3"):
        Schedule.from_json('{"lanes": [[3]]}')


def test_json_is_checked():
    text = one_f_one_b(2, 2).to_json().replace('"0F1", ', "")
    with pytest.raises(ValueError, match=r"is missing ops(.|\n)*missing \[0F1\]"):
        Schedule.from_json(text)


def test_interleaved():
    assert interleaved(4, 4, num_lanes=2).lanes == lanes_of(
        """
        0F0 0F1 2F0 2F1 0F2 2B0 0F3 2B1 2F2 0B0 2F3 0B1 2B2 2B3 0B2 0B3
        1F0 1F1 3F0 3B0 3F1 3B1 1F2 1B0 1F3 1B1 3F2 3B2 3F3 3B3 1B2 1B3
        """
    )


def test_zero_bubble():
    assert zero_bubble(3, 4).lanes == lanes_of(
        """
        0F0 0F1 0F2 0B0 0W0 0F3 0B1 0W1 0B2 0W2 0B3 0W3
        1F0 1F1 1B0 1F2 1B1 1W0 1F3 1B2 1W1 1B3 1W2 1W3
        2F0 2B0 2F1 2B1 2F2 2B2 2W0 2F3 2B3 2W1 2W2 2W3
        """
    )


@pytest.mark.parametrize("num_lanes", range(1, 6))
@pytest.mark.parametrize("num_rounds", range(1, 4))
@pytest.mark.parametrize("num_micro_batches", [1, 2, 3, 5, 8, 13])
def test_interleaved_can_run_with_any_counts(num_lanes, num_rounds, num_micro_batches):
    schedule = interleaved(num_lanes * num_rounds, num_micro_batches, num_lanes)
    assert len(schedule.order()) == 2 * num_lanes * num_rounds * num_micro_batches
    assert schedule.lane_of_stage == tuple(range(num_lanes)) * num_rounds


def test_interleaved_stages_fill_every_round():
    with pytest.raises(ValueError, match=r"multiple of .* num_stages=5, num_lanes=2"):
        interleaved(5, 4, num_lanes=2)


@pytest.mark.parametrize("num_stages", range(1, 7))
@pytest.mark.parametrize("num_micro_batches", [1, 2, 5, 9])
def test_zero_bubble_can_run_with_any_counts(num_stages, num_micro_batches):
    schedule = zero_bubble(num_stages, num_micro_batches)
    assert len(schedule.order()) == 3 * num_stages * num_micro_batches


def test_recomputation_comes_right_before_the_backward():
    assert recomputing(one_f_one_b(2, 2), [0]).lanes == lanes_of(
        """
        0F0 0F1 0R0 0B0 0R1 0B1
        1F0 1B0 1F1 1B1
        """
    )


def test_recomputation_is_not_added_twice():
    once = recomputing(zero_bubble(3, 4), [0, 1])
    assert recomputing(once, [0]).lanes == once.lanes


def test_a_backward_waits_for_its_recomputation():
    schedule = recomputing(one_f_one_b(3, 2), [1])
    assert schedule.needs(Op("R", 1, 0)) == (Op("F", 1, 0),)
    assert schedule.needs(Op("B", 1, 0)) == (Op("R", 1, 0), Op("B", 2, 0))
    assert schedule.needs(Op("B", 0, 0)) == (Op("F", 0, 0), Op("B", 1, 0))


def test_a_stage_recomputes_all_micro_batches_or_none():
    line, grid = refusal("0F0 0F1 0R0 0B0 0B1", 1, 2)
    assert line.startswith("The schedule 'mine' is missing ops")
    assert grid[-1].split() == ["missing", "[0R1]"]


@pytest.mark.parametrize("name", SCHEDULES)
def test_any_schedule_can_run_its_forwards_first_or_alone(name):
    schedule = recomputing(make(name, 4, 6, num_lanes=2), [1])
    assert {op.kind for op in forwards_only(schedule).order()} == {"F"}
    for lane in forwards_first(schedule).lanes:
        kinds = "".join(op.kind for op in lane)
        assert kinds.lstrip("F") == kinds.replace("F", "")


def test_a_schedule_is_read_from_text():
    own = Schedule.parse(["0F0 0F1 0B0 0B1", ["1F0", Op("B", 1, 0), "1F1", "1B1"]], name="mine")
    assert own == Schedule("mine", 2, 2, one_f_one_b(2, 2).lanes)


def test_text_that_can_never_finish_is_refused_with_the_grid():
    with pytest.raises(ValueError, match="can never finish") as error:
        Schedule.parse(["0F0 0B0", "1B0 1F0"])
    assert "[0B0]" in str(error.value)
    assert "[1B0]" in str(error.value)
