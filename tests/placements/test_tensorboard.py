"""The graph of layers that TensorBoard shows."""

from keras_mgpu.placements.report import PlacementReport
from keras_mgpu.placements.report_parts import LayerPlacement
from keras_mgpu.placements.tensorboard import layer_graph


def test_one_node_per_layer():
    report = PlacementReport(
        "net",
        layers=(
            LayerPlacement("first", "Dense", got=(("GPU:1", "CPU:0"), ("GPU:2",)), stages=(0, 1)),
            LayerPlacement("in/second", "Dense", weights_on=("GPU:3",), inputs=("first", "input")),
            LayerPlacement("(loss)", ""),
        ),
    )
    first, second = layer_graph(report).node
    assert (first.name, first.op, first.device) == ("first", "Dense", "/device:GPU:1")
    assert first.attr["ran_on"].s == b"GPU:1, CPU:0 | GPU:2"
    assert first.attr["stage"].s == b"0, 1"
    # A layer without ops is on the device of its weights, and unknown inputs are left out.
    assert (second.device, list(second.input)) == ("/device:GPU:3", ["first"])
