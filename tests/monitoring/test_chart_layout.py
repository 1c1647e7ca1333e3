from tensorboard.plugins.custom_scalar import layout_pb2

from keras_mgpu.monitoring.catalogue import METRICS, ChartGroup
from keras_mgpu.monitoring.chart_layout import layout, names_in


def groups_of(metrics):
    content = layout_pb2.Layout()
    (value,) = layout(metrics).value
    content.ParseFromString(value.tensor.string_val[0])
    return {each.title: [chart.title for chart in each.chart] for each in content.category}


def test_groups_in_their_order():
    found = groups_of([metric.name for metric in METRICS])
    assert list(found) == ["Work", "Memory", "Traffic", "Power and heat", "Training", "Host"]
    assert found["Work"][0] == "gpu/utilization"
    assert "train/imbalance" in found["Work"]


def test_only_what_is_logged():
    assert groups_of(["gpu/power", "gpu/memory_free"]) == {"Power and heat": ["gpu/power"]}
    assert names_in(ChartGroup.HOST, ["gpu/power"]) == []
