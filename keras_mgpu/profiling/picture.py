"""A timeline as a picture: one row a device, one box an op; predicted above, measured below."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from keras_mgpu.blueprint.timeline import Span, Timeline

WIDTH, MARGIN, ROW, GAP, TITLE = 1000, 80, 36, 6, 34
LETTERS, SMALL_LETTERS = 20, 15  # TensorBoard shows it at a third of its size.
COLOURS = {"F": (86, 156, 214), "R": (150, 200, 240), "B": (106, 190, 120), "W": (214, 170, 86)}
INK, PAPER, LINE = (30, 30, 30), (255, 255, 255), (225, 225, 225)
MIN_LABEL = 24  # Narrower boxes have no room for a name.


def draw(timelines: Sequence[tuple[str, Timeline]]) -> Any:
    """Returns a picture of timelines with their titles, all in the same scale."""
    from PIL import Image, ImageDraw, ImageFont

    longest = max((timeline.makespan for _, timeline in timelines), default=0.0) or 1.0
    height = sum(TITLE + timeline.num_lanes * (ROW + GAP) for _, timeline in timelines) + GAP
    picture = Image.new("RGB", (WIDTH, height), PAPER)
    canvas = ImageDraw.Draw(picture)
    large, small = (ImageFont.load_default(size) for size in (LETTERS, SMALL_LETTERS))
    top = GAP
    for title, timeline in timelines:
        canvas.text((MARGIN, top), title, fill=INK, font=large)
        top += TITLE
        first = min((span.start for span in timeline.spans), default=0.0)
        for lane in range(timeline.num_lanes):
            y = top + lane * (ROW + GAP)
            canvas.text((GAP, y + ROW // 6), f"lane {lane}", fill=INK, font=large)
            canvas.rectangle((MARGIN, y, WIDTH - GAP, y + ROW), fill=LINE)
        for span in timeline.spans:
            _box(canvas, span, first, top, (WIDTH - GAP - MARGIN) / longest, small)
        top += timeline.num_lanes * (ROW + GAP)
    return picture


def _box(canvas: Any, span: Span, first: float, top: int, scale: float, font: Any) -> None:
    left = MARGIN + (span.start - first) * scale
    right = max(left + 1, MARGIN + (span.end - first) * scale - 1)
    y = top + span.lane * (ROW + GAP)
    canvas.rectangle((left, y, right, y + ROW), fill=COLOURS[span.op.kind], outline=PAPER)
    if right - left >= MIN_LABEL:
        name = f"{span.op.kind}{span.op.micro_batch}"
        canvas.text((left + 3, y + ROW // 4), name, fill=INK, font=font)
