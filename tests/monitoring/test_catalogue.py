"""The table of metrics, and what is derived from it."""

from pathlib import Path

from keras_mgpu.monitoring.catalogue import (
    BY_NAME,
    DESCRIPTIONS,
    METRICS,
    Metric,
    Origin,
    markdown,
)

DOCS = Path(__file__).parents[2] / "docs"


def test_names_are_unique_and_begin_with_where_they_come_from():
    begins = {"gpu": Origin.DRIVER, "allocator": Origin.ALLOCATOR}
    begins |= {"host": Origin.HOST, "train": Origin.TRAINING}
    assert len(BY_NAME) == len(METRICS)
    for metric in METRICS:
        assert metric.origin is begins[metric.name.partition("/")[0]]


def test_what_a_metric_is_computed_from_is_a_metric_itself():
    needed = [metric.computed_from for metric in METRICS if metric.computed_from is not None]
    assert needed
    assert set(needed) <= set(BY_NAME)


def test_tags_and_their_descriptions():
    steady = Metric("gpu/limit", "W", Origin.DRIVER, "power allowed", is_steady=True)
    assert steady.tags == {"gpu/limit": "power allowed, in W"}
    other = Metric("gpu/power", "W", Origin.DRIVER, "power draw")
    assert list(other.tags) == ["gpu/power", "gpu/power_max", "gpu/power_last"]
    assert DESCRIPTIONS["gpu/power_max"] == "power draw, in W: the maximum of the step's samples"


def test_docs_hold_the_table():
    assert markdown() in (DOCS / "metrics.md").read_text(encoding="utf-8")
