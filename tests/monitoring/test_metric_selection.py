import pytest

from keras_mgpu.monitoring.catalogue import METRICS, Origin
from keras_mgpu.monitoring.metric_selection import (
    are_slow,
    choose,
    come_from,
    tags_of,
    with_sources,
)


def test_names_and_what_stands_for_many():
    assert choose("all") == METRICS
    defaults = choose("default")
    assert {metric.is_default for metric in defaults} == {True}
    assert len(choose(["default", "gpu/memory_free"])) == len(defaults) + 1
    (metric,) = choose("host/cpu")
    assert metric.name == "host/cpu"


def test_metrics_come_in_the_order_of_the_table():
    names = [metric.name for metric in choose(["host/cpu", "gpu/power"])]
    assert names == ["gpu/power", "host/cpu"]


@pytest.mark.parametrize(
    ("metrics", "message"),
    [
        (["gpu/utilisation"], "Did you mean 'gpu/utilization'"),
        ("temperature", "Did you mean 'gpu/temperature'"),
        ("defaults", 'Available metrics: "default", "all", gpu/utilization, '),
        (None, '`metrics` must be "default", "all" or a list of names. Received: metrics=None'),
        (3, "Received: metrics=3"),
        ([3], "Unknown metric.*Received: metrics=3"),
    ],
)
def test_unknown_names(metrics, message):
    with pytest.raises(ValueError, match=message):
        choose(metrics)


def test_what_must_be_sampled():
    assert with_sources(["train/imbalance"]) == {"train/imbalance", "gpu/utilization"}
    assert with_sources(["gpu/power"]) == {"gpu/power"}
    assert come_from(Origin.DRIVER, with_sources(["train/imbalance"]))
    assert not come_from(Origin.HOST, ["gpu/power", "train/step_time"])


def test_what_may_be_read_once_per_second():
    assert are_slow(["gpu/temperature", "host/cpu"])
    assert not are_slow(["gpu/temperature", "gpu/memory_used"])


def test_tags():
    expected = {"host/cpu", "host/cpu_max", "host/cpu_last", "host/threads"}
    assert tags_of(["host/cpu", "host/threads"]) == expected
