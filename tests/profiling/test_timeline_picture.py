from keras_mgpu.blueprint.named_schedules import one_f_one_b
from keras_mgpu.blueprint.timeline import Timeline, replay
from keras_mgpu.profiling.timeline_picture import (
    COLOURS,
    GAP,
    MARGIN,
    PAPER,
    ROW,
    TITLE,
    WIDTH,
    draw_timelines,
)


def colours(picture):
    return {colour for _, colour in picture.getcolors(maxcolors=10_000)}


def test_each_kind_of_op_has_its_colour():
    picture = draw_timelines([("predicted", replay(one_f_one_b(2, 4)))])
    assert {COLOURS["F"], COLOURS["B"]} <= colours(picture)
    assert COLOURS["W"] not in colours(picture)


def test_one_row_per_lane_below_each_title():
    timeline = replay(one_f_one_b(3, 4))
    one, two = draw_timelines([("a", timeline)]), draw_timelines([("a", timeline)] * 2)
    assert one.size == (WIDTH, GAP + TITLE + 3 * (ROW + GAP))
    assert two.height == 2 * one.height - GAP


def test_timelines_are_drawn_to_the_same_scale():
    long, short = replay(one_f_one_b(2, 8)), replay(one_f_one_b(2, 2))
    picture = draw_timelines([("long", long), ("short", short)])
    middle = GAP + TITLE + 2 * (ROW + GAP) + TITLE + ROW // 2
    row = [picture.getpixel((x, middle)) for x in range(MARGIN, WIDTH - GAP)]
    share = sum(colour in COLOURS.values() for colour in row) / len(row)
    assert share <= short.makespan / long.makespan


def test_nothing_to_draw():
    assert colours(draw_timelines([])) == {PAPER}
    draw_timelines([("empty", Timeline(2, ()))])
