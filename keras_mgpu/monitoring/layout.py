"""The layout of TensorBoard's Custom Scalars tab: metrics in groups, all devices in each chart."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from tensorboard.plugins.custom_scalar import layout_pb2
from tensorboard.plugins.custom_scalar import summary as custom_scalars

GROUPS = {
    "Work": ("gpu/utilization", "gpu/sm_active", "gpu/tensor_active", "train/imbalance"),
    "Memory": (
        "gpu/memory_used",
        "gpu/memory_of_this_process",
        "gpu/memory_of_others",
        "allocator/used",
        "allocator/peak",
    ),
    "Traffic": ("gpu/pcie_sent", "gpu/pcie_received", "gpu/nvlink_sent", "gpu/nvlink_received"),
    "Power and heat": ("gpu/power", "gpu/temperature", "gpu/sm_clock", "gpu/energy_per_sample"),
    "Training": (
        "train/step_time",
        "train/samples_per_second",
        "train/between_steps",
        "train/slowest_worker",
    ),
    "Host": ("host/cpu", "host/memory", "host/disk_read", "host/network_received"),
}


def layout(metrics: Collection[str]) -> Any:
    """A summary that holds the layout of the metrics that are logged."""
    categories = []
    for title, names in GROUPS.items():
        charts = [
            layout_pb2.Chart(
                title=name, multiline=layout_pb2.MultilineChartContent(tag=[f"^{name}$"])
            )
            for name in names
            if name in metrics
        ]
        if charts:
            categories.append(layout_pb2.Category(title=title, chart=charts))
    return custom_scalars.pb(layout_pb2.Layout(category=categories))
