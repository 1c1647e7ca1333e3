"""Which checkpoints stay."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keras_mgpu.checkpoints.retention import Retention, Saved, resolve_mode


def saved(*values, every=10):
    return [Saved(f"{index:06d}", (index + 1) * every, value) for index, value in enumerate(values)]


def numbers(names):
    return sorted(int(name) for name in names)


def test_the_newest_stay():
    assert numbers(Retention(last=2).kept(saved(1, 2, 3, 4))) == [2, 3]
    assert numbers(Retention(last=9).kept(saved(1, 2))) == [0, 1]


def test_the_best_stay_too():
    values = saved(0.5, 0.1, 0.9, 0.3)
    assert numbers(Retention(last=1, best=1).kept(values)) == [1, 3]
    assert numbers(Retention(last=1, best=2, mode="max").kept(values)) == [0, 2, 3]


def test_of_equal_ones_the_earlier_is_better():
    assert numbers(Retention(last=1, best=1).kept(saved(0.5, 0.5, 0.5))) == [0, 2]


def test_what_is_no_number_is_never_best():
    values = saved(math.nan, None, 0.7, math.inf, None)
    assert numbers(Retention(last=1, best=2).kept(values)) == [2, 3, 4]


def test_one_for_each_so_many_steps_stays_for_ever():
    steps = saved(*[None] * 12)
    assert numbers(Retention(last=1, every=40).kept(steps)) == [3, 7, 11]
    # Saved at other steps: the first one at or after each multiple.
    odd = saved(*[None] * 10, every=7)
    assert [odd[i].step for i in numbers(Retention(last=1, every=30).kept(odd))] == [35, 63, 70]


@given(
    st.lists(st.none() | st.floats(), min_size=1, max_size=30),
    st.integers(1, 5),
    st.integers(0, 5),
    st.none() | st.integers(1, 100),
)
def test_saving_one_after_another_ends_as_looking_at_all(values, last, best, every):
    """Deleting as one goes loses nothing that a look at everything would have kept."""
    rule = Retention(last, best, "min", every)
    there = []
    for each in saved(*values):
        there.append(each)
        kept = rule.kept(there)
        there = [one for one in there if one.name in kept]
    assert {one.name for one in there} == rule.kept(saved(*values))
    assert there[-1].name == saved(*values)[-1].name


@pytest.mark.parametrize(
    ("monitor", "mode"),
    [
        ("val_loss", "min"),
        ("val_accuracy", "max"),
        ("val_sparse_top_k_categorical_accuracy", "max"),
        ("auc", "max"),
        ("mean_absolute_error", "min"),
        (None, "min"),
    ],
)
def test_auto_mode(monitor, mode):
    assert resolve_mode("auto", monitor) == mode


def test_unknown_mode():
    with pytest.raises(ValueError, match='"auto", "min" or "max"'):
        resolve_mode("maximum", "loss")
