"""The layout of TensorBoard's Custom Scalars tab: charts in groups, all devices in each chart."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from tensorboard.plugins.custom_scalar import layout_pb2
from tensorboard.plugins.custom_scalar import summary as custom_scalars

from keras_mgpu.monitoring.catalogue import METRICS, ChartGroup


def names_in(group: ChartGroup, metrics: Collection[str]) -> list[str]:
    """Names of the metrics that a group of charts shows, out of those that are logged."""
    return [each.name for each in METRICS if each.chart is group and each.name in metrics]


def layout(metrics: Collection[str]) -> Any:
    """A summary that holds the layout of the metrics that are logged."""
    groups = {group.value: names_in(group, metrics) for group in ChartGroup}
    categories = [
        layout_pb2.Category(title=title, chart=[_chart(name) for name in names])
        for title, names in groups.items()
        if names
    ]
    return custom_scalars.pb(layout_pb2.Layout(category=categories))


def _chart(name: str) -> Any:
    content = layout_pb2.MultilineChartContent(tag=[f"^{name}$"])
    return layout_pb2.Chart(title=name, multiline=content)
