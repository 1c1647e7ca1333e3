"""Shortens long lists: repeated rows are shown once, unusual rows are always shown."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass

LONGEST_BLOCK = 64


@dataclass(frozen=True)
class Foldable:
    """What folding needs to know about a row.

    Args:
        looks: Rows with equal looks can stand for one another.
        place: Neighbours with equal places can be summed up in one line.
        is_odd: Whether the row should keep its own line.
    """

    looks: Hashable
    place: Hashable
    is_odd: bool = False


@dataclass(frozen=True)
class FoldedLine:
    """One line to show.

    Args:
        first: The first row it stands for.
        last: The last row it stands for.
        times: How often the block that begins here is repeated.
        block: Number of rows in that block.
        is_sum: Whether it sums up different rows.
    """

    first: int
    last: int
    times: int = 1
    block: int = 1
    is_sum: bool = False


def fold_rows(rows: Sequence[Foldable], limit: int) -> list[FoldedLine]:
    """Returns at most `limit` lines for any number of rows, in order.

    Repeated blocks are shown once. If that is not enough, neighbours in the same place are summed
    up, odd rows only if nothing else helps. What still does not fit becomes one line.
    """
    lines = list(_blocks(rows))
    if len(lines) > limit:
        lines = _summed(rows, keep_odd=True)
    if len(lines) > limit:
        lines = _summed(rows, keep_odd=False)
    if len(lines) > limit:
        rest = lines[limit - 1].first
        lines = [*lines[: limit - 1], FoldedLine(rest, len(rows) - 1, is_sum=True)]
    return lines


def _blocks(rows: Sequence[Foldable]) -> Iterator[FoldedLine]:
    looks = [row.looks for row in rows]
    start = 0
    while start < len(rows):
        block, times = _best_block(looks, start)
        for offset in range(block):
            last = start + offset + (times - 1) * block
            yield FoldedLine(start + offset, last, times, block if offset == 0 else 1)
        start += block * times


def _best_block(looks: Sequence[Hashable], start: int) -> tuple[int, int]:
    """The length and number of repetitions of the block at `start` that saves the most lines."""
    best, saved = (1, 1), 0
    for block in range(1, min(LONGEST_BLOCK, (len(looks) - start) // 2) + 1):
        times = 1
        pattern = looks[start : start + block]
        while looks[start + times * block : start + (times + 1) * block] == pattern:
            times += 1
        if (times - 1) * block > saved:
            best, saved = (block, times), (times - 1) * block
    return best


def _summed(rows: Sequence[Foldable], keep_odd: bool) -> list[FoldedLine]:
    lines: list[FoldedLine] = []
    for index, row in enumerate(rows):
        before = lines[-1] if lines else None
        joins = (
            before is not None
            and rows[before.last].place == row.place
            and not (keep_odd and (row.is_odd or rows[before.last].is_odd))
        )
        if joins and before is not None:
            lines[-1] = FoldedLine(before.first, index, is_sum=True)
        else:
            lines.append(FoldedLine(index, index))
    return lines
