"""A placement report for TensorBoard: a graph of layers colored by device, and a table."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from keras_mgpu.placements.report import PlacementReport
from keras_mgpu.placements.report_parts import LayerPlacement
from keras_mgpu.placements.table import devices_text, markdown

PLUGIN_NAME = "keras_mgpu"
TAG = "placement"


def write(report: PlacementReport, log_dir: str) -> None:
    """Writes an event file with a graph, a text, and the JSON for a plugin."""
    writer = tf.summary.create_file_writer(log_dir)
    with writer.as_default(step=0):
        tf.summary.graph(layer_graph(report))
        tf.summary.text(TAG, markdown(report))
        metadata = tf.compat.v1.SummaryMetadata(
            plugin_data=tf.compat.v1.SummaryMetadata.PluginData(plugin_name=PLUGIN_NAME)
        )
        tf.summary.write(f"{PLUGIN_NAME}/{TAG}", report.to_json(), metadata=metadata)
    writer.close()


def layer_graph(report: PlacementReport) -> Any:
    """A graph with one node per layer, on the device that the layer ran on."""
    graph = tf.compat.v1.GraphDef()
    paths = {layer.path for layer in report.layers}
    for layer in report.layers:
        if not layer.kind:
            continue
        node = graph.node.add(name=_node_name(layer.path), op=layer.kind, device=_device(layer))
        node.input.extend(_node_name(path) for path in layer.inputs if path in paths)
        for name, value in _attributes(layer).items():
            node.attr[name].s = value.encode()
    return graph


def _attributes(layer: LayerPlacement) -> dict[str, str]:
    fields = {
        "asked_for": devices_text(layer.asked),
        "ran_on": devices_text(layer.got),
        "weights_on": ", ".join(layer.weights_on),
        "slots_on": ", ".join(layer.slots_on),
        "stage": ", ".join(map(str, layer.stages)),
        "parameters": str(layer.num_parameters),
    }
    return {name: text for name, text in fields.items() if text}


def _device(layer: LayerPlacement) -> str:
    """The device that most of its ops ran on or, without ops, the device of its weights."""
    used = [device for devices in layer.got for device in devices] or list(layer.weights_on)
    return f"/device:{used[0]}" if used else ""


def _node_name(path: str) -> str:
    return path.strip("()")
