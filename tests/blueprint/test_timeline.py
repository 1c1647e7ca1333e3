"""Timelines: the numbers from the literature, and drawings."""

from textwrap import dedent

import pytest

from keras_mgpu.blueprint.named_schedules import (
    forwards_only,
    gpipe,
    interleaved,
    one_f_one_b,
    recomputing,
    zero_bubble,
)
from keras_mgpu.blueprint.schedule import Op, Schedule
from keras_mgpu.blueprint.timeline import MAX_TICKS, Costs, Span, StageBytes, Timeline, replay

SIZES = [(stages, micro_batches) for stages in range(1, 7) for micro_batches in range(1, 10)]


def drawing(text):
    return dedent(text).strip("\n")


def schedule_of(picture, num_stages, num_micro_batches):
    lanes = tuple(tuple(map(Op.parse, line.split())) for line in picture.strip().splitlines())
    return Schedule("mine", num_stages, num_micro_batches, lanes)


@pytest.mark.parametrize("build", [gpipe, one_f_one_b])
@pytest.mark.parametrize(("stages", "micro_batches"), SIZES)
def test_bubble_is_that_of_the_formula(build, stages, micro_batches):
    timeline = replay(build(stages, micro_batches))
    assert timeline.makespan == 2 * (micro_batches + stages - 1)
    assert timeline.bubble == pytest.approx((stages - 1) / (micro_batches + stages - 1))


@pytest.mark.parametrize(("stages", "micro_batches"), SIZES)
def test_peak_live(stages, micro_batches):
    assert replay(gpipe(stages, micro_batches)).peak_live == (micro_batches,) * stages
    assert replay(one_f_one_b(stages, micro_batches)).peak_live == tuple(
        min(stages - stage, micro_batches) for stage in range(stages)
    )


def test_peak_live_of_forwards_is_what_runs():
    assert replay(forwards_only(gpipe(3, 5))).peak_live == (1, 1, 1)


def test_peak_live_lasts_until_the_weight_gradient():
    early = schedule_of("0F0 0B0 0W0 0F1 0B1 0W1", 1, 2)
    late = schedule_of("0F0 0B0 0F1 0B1 0W0 0W1", 1, 2)
    assert replay(early).peak_live == (1,)
    assert replay(late).peak_live == (2,)


def test_spans_may_come_in_any_order():
    timeline = replay(one_f_one_b(3, 4))
    backwards = Timeline(3, timeline.spans[::-1])
    assert backwards.peak_live == timeline.peak_live == (3, 2, 1)
    assert backwards.makespan == timeline.makespan
    assert backwards.draw() == timeline.draw()


def test_replay_with_one_cost_a_stage():
    timeline = replay(gpipe(2, 2), Costs(forward=[1, 3], backward=(2, 4)))
    assert {str(span.op): (span.lane, span.start, span.end) for span in timeline.spans} == {
        "0F0": (0, 0, 1),
        "0F1": (0, 1, 2),
        "1F0": (1, 1, 4),
        "1F1": (1, 4, 7),
        "1B0": (1, 7, 11),
        "1B1": (1, 11, 15),
        "0B0": (0, 11, 13),
        "0B1": (0, 15, 17),
    }
    assert timeline.makespan == 17
    assert timeline.bubble == pytest.approx(1 - 20 / 34)


def test_weight_cost_counts_where_there_are_such_ops():
    whole = schedule_of("0F0 0B0", 1, 1)
    split = schedule_of("0F0 0B0 0W0", 1, 1)
    costs = Costs(forward=1, backward=2, weight=40)
    assert replay(whole, costs).makespan == 3
    assert replay(split, costs).makespan == 43


def test_late_weight_gradients_fill_the_bubble():
    eager = schedule_of("0F0 0F1 0B0 0W0 0B1 0W1\n1F0 1B0 1W0 1F1 1B1 1W1", 2, 2)
    late = schedule_of("0F0 0F1 0B0 0W0 0B1 0W1\n1F0 1B0 1F1 1B1 1W0 1W1", 2, 2)
    assert replay(late).bubble < replay(eager).bubble


def test_whole_costs_give_whole_times():
    assert all(type(span.end) is int for span in replay(one_f_one_b(2, 2)).spans)


def test_no_cost_is_no_bubble():
    timeline = replay(gpipe(2, 2), Costs(0, 0, 0))
    assert timeline.makespan == 0
    assert timeline.bubble == 0


def test_idle_lane_counts_as_bubble():
    assert Timeline(2, (Span(0, Op("F", 0, 0), 5.0, 7.0),)).bubble == 0.5


@pytest.mark.parametrize("value", ["1", None, True, [1, "2"], [[1]]])
def test_costs_must_be_numbers(value):
    with pytest.raises(TypeError, match=r"`backward` must be a number .* Received: backward="):
        Costs(backward=value)


@pytest.mark.parametrize("value", [-1, float("nan"), float("inf"), [1, -0.5]])
def test_costs_must_be_times(value):
    with pytest.raises(ValueError, match=r"`forward` must be finite .* Received: forward="):
        Costs(forward=value)


@pytest.mark.parametrize("value", [[], [1], [1, 2, 3]])
def test_costs_must_match_the_stages(value):
    with pytest.raises(
        ValueError, match=r"`forward` must be .* 2 numbers, one per stage. Received: forward="
    ):
        replay(gpipe(2, 2), Costs(forward=value))


@pytest.mark.parametrize("span", [(1, 0, 1), (-1, 0, 1), (0, 2, 1)])
def test_spans_must_make_sense(span):
    lane, start, end = span
    with pytest.raises(ValueError, match=r"one of the 1 lanes .* Received: span=Span"):
        Timeline(1, (Span(lane, Op("F", 0, 0), start, end),))


def test_draw_gpipe():
    assert replay(gpipe(4, 3)).draw() == drawing(
        """
        lane 0  F0 F1 F2 .  .  .  .  .  .  B0 B1 B2
        lane 1  .  F0 F1 F2 .  .  .  .  B0 B1 B2 .
        lane 2  .  .  F0 F1 F2 .  .  B0 B1 B2 .  .
        lane 3  .  .  .  F0 F1 F2 B0 B1 B2 .  .  .
        """
    )


def test_draw_one_f_one_b():
    assert replay(one_f_one_b(4, 5)).draw() == drawing(
        """
        lane 0  F0 F1 F2 F3 .  .  .  B0 F4 B1 .  B2 .  B3 .  B4
        lane 1  .  F0 F1 F2 .  .  B0 F3 B1 F4 B2 .  B3 .  B4 .
        lane 2  .  .  F0 F1 .  B0 F2 B1 F3 B2 F4 B3 .  B4 .  .
        lane 3  .  .  .  F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 .  .  .
        """
    )


def test_draw_keeps_columns_with_long_numbers():
    lines = replay(one_f_one_b(11, 12)).draw().splitlines()
    assert lines[0].startswith("lane 0   F0  F1  F2  ")
    assert lines[10].startswith("lane 10  .   .   .   ")
    column = lines[0].index("F10 ")
    assert [line[column : column + 4].rstrip() for line in lines] == [
        f"F{10 - lane}" for lane in range(11)
    ]


def test_draw_long_ops():
    assert replay(gpipe(2, 2), Costs(forward=2, backward=3)).draw() == drawing(
        """
        lane 0  F0--- F1--- .  .  .  .  .  B0------ B1------
        lane 1  .  .  F0--- F1--- B0------ B1------ .  .  .
        """
    )


def test_draw_takes_the_longest_common_tick():
    schedule = one_f_one_b(3, 4)
    once = replay(schedule, Costs(1, 2)).draw()
    assert replay(schedule, Costs(1000, 2000)).draw() == once
    assert replay(schedule, Costs(0.1, 0.2)).draw() == once
    assert replay(schedule, Costs(10**12, 2 * 10**12)).draw() == once


def test_draw_starts_with_the_first_span():
    spans = (Span(0, Op("F", 0, 0), 75, 85), Span(1, Op("F", 1, 0), 85, 95))
    assert Timeline(2, spans).draw() == "lane 0  F0 .\nlane 1  .  F0"


def test_draw_names_stages_where_a_lane_holds_several():
    schedule = schedule_of("0F0 2F0 2B0 0B0\n1F0 1B0", 3, 1)
    assert replay(schedule).draw() == drawing(
        """
        lane 0  0F0 .   2F0 2B0 .   0B0
        lane 1  .   1F0 .   .   1B0 .
        """
    )


def test_draw_weight_gradients():
    assert replay(schedule_of("0F0 0B0 0W0", 1, 1)).draw() == "lane 0  F0 B0 W0"


def test_draw_measured_times_shows_every_op():
    costs = Costs(forward=[0.0031, 0.0047], backward=[0.0103, 0.0079])
    text = replay(one_f_one_b(2, 6), costs).draw()
    for line in text.splitlines():
        for kind in "FB":
            for index in range(6):
                assert f"{kind}{index}" in line


def test_draw_gets_coarser_rather_than_endless():
    text = replay(gpipe(2, 2), Costs(forward=1, backward=10**7 + 1)).draw()
    assert max(map(len, text.splitlines())) <= len("lane 0  ") + 3 * MAX_TICKS


def test_draw_nothing():
    assert Timeline(1, ()).draw().rstrip() == "lane 0"
    assert Timeline(1, ()).peak_live == ()


def test_json_there_and_back():
    for costs in (Costs(), Costs(forward=0.1, backward=[0.3, 0.7, 1])):
        timeline = replay(one_f_one_b(3, 12), costs)
        assert Timeline.from_json(timeline.to_json()) == timeline


@pytest.mark.parametrize("text", ["{}", "[]", "3", '{"num_lanes": 1, "spans": [{"lane": 0}]}'])
def test_foreign_json(text):
    with pytest.raises(ValueError, match=r"output of `Timeline.to_json`. Received: text="):
        Timeline.from_json(text)


@pytest.mark.parametrize("num_stages", range(1, 9))
@pytest.mark.parametrize("rounds_of_micro_batches", [1, 2, 5])
def test_bubbles_are_those_of_the_papers(num_stages, rounds_of_micro_batches):
    """With equal times for forward, gradients of inputs and gradients of weights."""
    p, m = num_stages, num_stages * rounds_of_micro_batches
    one = replay(one_f_one_b(p, m), Costs(backward=2))
    assert one.bubble == pytest.approx((p - 1) / (m + p - 1))
    idle = one.makespan - 3 * m
    for v in (2, 3):
        # Each of the v stages of a device has a v-th of the work.
        timeline = replay(interleaved(p * v, m, p), Costs(1 / v, 2 / v))
        assert timeline.makespan - 3 * m == pytest.approx(idle / v)
    assert replay(zero_bubble(p, m)).makespan - 3 * m == pytest.approx(idle / 3)


@pytest.mark.parametrize("num_stages", range(1, 7))
@pytest.mark.parametrize("num_micro_batches", [1, 4, 16])
def test_zero_bubble_keeps_no_more_than_the_first_stage_of_1f1b(num_stages, num_micro_batches):
    most = max(replay(one_f_one_b(num_stages, num_micro_batches)).peak_live)
    assert max(replay(zero_bubble(num_stages, num_micro_batches)).peak_live) == most


def test_recomputation_runs_while_a_device_waits():
    """The first recomputation of stage 0 is done before its gradient arrives: it costs nothing."""
    timeline = replay(recomputing(one_f_one_b(3, 3), [0]))
    spans = {str(span.op): span for span in timeline.spans}
    assert spans["0R0"].end <= spans["1B0"].end == spans["0B0"].start


def test_recomputed_micro_batches_are_alive_only_shortly():
    assert replay(recomputing(one_f_one_b(4, 8), range(4))).peak_live == (1, 1, 1, 1)


def test_transfers_delay_but_do_not_occupy():
    timeline = replay(forwards_only(gpipe(2, 3)), Costs(transfer=0.5))
    starts = [span.start for span in timeline.spans if span.op.stage == 1]
    assert starts == [1.5, 2.5, 3.5]
    in_one_lane = Schedule.parse(["0F0 1F0 0F1 1F1"])
    assert replay(in_one_lane, Costs(transfer=0.5)).makespan == 4


def test_peak_memory_counts_what_is_kept_at_once():
    sizes = StageBytes(activations=(10, 20), for_weights=(4, 8), inputs=(1, 2))
    assert replay(one_f_one_b(2, 4)).peak_memory(sizes) == (20, 20)
    assert replay(gpipe(2, 4)).peak_memory(sizes) == (40, 80)
    # Stage 1 still keeps a part of the micro-batch before for its weights.
    assert replay(zero_bubble(2, 4)).peak_memory(sizes) == (20, 28)
    # While one is run again, the input of the other waits.
    assert replay(recomputing(one_f_one_b(2, 4), [0])).peak_memory(sizes) == (11, 20)


def test_interleaved_lanes_keep_what_all_their_stages_keep():
    sizes = StageBytes(activations=(1,) * 4, for_weights=(0,) * 4, inputs=(0,) * 4)
    assert replay(interleaved(4, 4, 2)).peak_memory(sizes) == (5, 3)
