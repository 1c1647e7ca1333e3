"""Long lists made short."""

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keras_mgpu.placements.folding import Foldable, FoldedLine, fold_rows


def rows(text):
    """A letter a row; capitals are odd."""
    return [Foldable(letter, letter.lower(), letter.isupper()) for letter in text]


def shown(text, limit=60):
    """Each line as its first row, and how often or how much it stands for."""
    lines = fold_rows(rows(text), limit)
    return [
        text[line.first]
        + (f"+{line.last - line.first}" if line.is_sum else f"x{line.times}" * (line.times > 1))
        for line in lines
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ("abc", ["a", "b", "c"]),
        ("aaaa", ["ax4"]),
        ("iababababo", ["i", "ax4", "bx4", "o"]),
        ("aabaabaab", ["ax3", "ax3", "bx3"]),
        ("ababXabab", ["ax2", "bx2", "X", "ax2", "bx2"]),
    ],
)
def test_blocks_that_repeat_are_shown_once(text, expected):
    assert shown(text) == expected


def test_a_block_knows_its_length():
    assert fold_rows(rows("ababab"), 60) == [FoldedLine(0, 4, 3, 2), FoldedLine(1, 5, 3, 1)]


def test_neighbours_in_one_place_are_summed_up_and_odd_ones_kept():
    looks = string.ascii_lowercase
    many = [Foldable(letter, "here", letter == "k") for letter in looks]
    lines = fold_rows(many, 5)
    assert [(line.first, line.last) for line in lines] == [(0, 9), (10, 10), (11, 25)]


@given(st.text("abcXY", max_size=80), st.integers(3, 20))
def test_every_row_is_in_a_line_and_lines_are_few(text, limit):
    lines = fold_rows(rows(text), limit)
    assert len(lines) <= max(limit, 1)
    covered = set()
    index = 0
    while index < len(lines):
        block = 1 if lines[index].is_sum else lines[index].block
        first, last = lines[index].first, lines[index + block - 1].last
        covered |= set(range(first, last + 1))
        index += block
    assert covered == set(range(len(text)))
    if not any(line.is_sum for line in lines):
        assert {text[line.first] for line in lines} == set(text)
