"""Timelines as a picture: one row per device, one box per op."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from keras_mgpu.blueprint.timeline import Span, Timeline

WIDTH, MARGIN, ROW, GAP, TITLE = 1000, 80, 36, 6, 34
LETTERS, SMALL_LETTERS = 20, 15  # TensorBoard shows the picture at a third of its size.
COLOURS = {"F": (86, 156, 214), "R": (150, 200, 240), "B": (106, 190, 120), "W": (214, 170, 86)}
INK, PAPER, LINE = (30, 30, 30), (255, 255, 255), (225, 225, 225)
MIN_LABEL = 24  # Narrower boxes have no room for a label.


def draw_timelines(timelines: Sequence[tuple[str, Timeline]]) -> Any:
    """Draws timelines below one another, each under its title, all to the same scale."""
    from PIL import Image, ImageDraw, ImageFont

    longest = max((timeline.makespan for _, timeline in timelines), default=0.0) or 1.0
    height = sum(TITLE + timeline.num_lanes * (ROW + GAP) for _, timeline in timelines) + GAP
    picture = Image.new("RGB", (WIDTH, height), PAPER)
    canvas = ImageDraw.Draw(picture)
    large, small = (ImageFont.load_default(size) for size in (LETTERS, SMALL_LETTERS))
    scale, top = (WIDTH - GAP - MARGIN) / longest, GAP
    for title, timeline in timelines:
        canvas.text((MARGIN, top), title, fill=INK, font=large)
        top += TITLE
        _draw_lanes(canvas, timeline.num_lanes, top, large)
        first = min((span.start for span in timeline.spans), default=0.0)
        for span in timeline.spans:
            _draw_span(canvas, span, left=MARGIN - first * scale, top=top, scale=scale, font=small)
        top += timeline.num_lanes * (ROW + GAP)
    return picture


def _draw_lanes(canvas: Any, num_lanes: int, top: int, font: Any) -> None:
    for lane in range(num_lanes):
        y = top + lane * (ROW + GAP)
        canvas.text((GAP, y + ROW // 6), f"lane {lane}", fill=INK, font=font)
        canvas.rectangle((MARGIN, y, WIDTH - GAP, y + ROW), fill=LINE)


def _draw_span(canvas: Any, span: Span, *, left: float, top: int, scale: float, font: Any) -> None:
    """Draws an op. `left` and `top` are where time 0 of the first lane lies."""
    begin = left + span.start * scale
    end = max(begin + 1, left + span.end * scale - 1)
    y = top + span.lane * (ROW + GAP)
    canvas.rectangle((begin, y, end, y + ROW), fill=COLOURS[span.op.kind], outline=PAPER)
    if end - begin >= MIN_LABEL:
        label = f"{span.op.kind}{span.op.micro_batch}"
        canvas.text((begin + 3, y + ROW // 4), label, fill=INK, font=font)
