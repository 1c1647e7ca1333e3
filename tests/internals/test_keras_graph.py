"""A model's graph of calls, as Keras keeps it."""

import keras
import numpy as np
from keras import layers
from versions import needs_layers_beside_the_graph

from keras_mgpu.internals import keras_graph


def skip():
    """Three layers, the first of which two others read."""
    inputs = keras.Input((4,), name="data")
    first = layers.Dense(4, name="first")(inputs)
    second = layers.Dense(4, name="second")(first)
    return keras.Model(inputs, layers.Add(name="sum")([first, second]))


def names(nodes):
    return [node.operation.name for node in nodes]


def test_calls_come_in_an_order_in_which_they_can_run():
    assert names(keras_graph.nodes_in_order(skip())) == ["first", "second", "sum"]


def test_a_layer_that_is_called_twice_comes_twice():
    inputs, shared = keras.Input((4,)), layers.Dense(4, name="shared")
    graph = keras.Model(inputs, shared(layers.ReLU(name="relu")(shared(inputs))))
    assert names(keras_graph.nodes_in_order(graph)) == ["shared", "relu", "shared"]


def test_who_has_a_graph():
    """A model that overrides `call` has layers, but runs code of its own."""

    class OwnCall(keras.Sequential):
        def call(self, inputs, training=None, mask=None, **kwargs):
            return super().call(inputs) * 2

    model = skip()
    assert keras_graph.graph_of(model) is model
    sequential = keras.Sequential([keras.Input((4,)), layers.Dense(2, name="only")])
    assert names(keras_graph.nodes_in_order(keras_graph.graph_of(sequential))) == ["only"]
    assert keras_graph.graph_of(OwnCall([keras.Input((4,)), layers.Dense(2)])) is None
    assert keras_graph.graph_of(layers.Dense(2)) is None


def test_a_call_runs_with_values_in_the_place_of_symbols():
    *_, last = keras_graph.nodes_in_order(skip())
    args, kwargs = keras_graph.fill_in(last, last.input_tensors, [np.ones(4), np.full(4, 2.0)])
    np.testing.assert_array_equal(last.operation(*args, **kwargs), np.full(4, 3.0))


def test_inputs_by_name_and_outputs_in_the_users_structure():
    left, right = keras.Input((2,), name="left"), keras.Input((3,), name="right")
    outputs = {"b": layers.Dense(1)(right), "a": layers.Dense(1)(left)}
    model = keras.Model({"left": left, "right": right}, outputs)
    fed = keras_graph.standardize_inputs(model, {"right": np.ones((5, 3)), "left": np.ones((5, 2))})
    assert [tuple(value.shape) for value in fed] == [(5, 2), (5, 3)]
    assert keras_graph.pack_outputs(model, [1, 2]).keys() == {"a", "b"}
    assert keras_graph.pack_outputs(skip(), [7]) == 7


@needs_layers_beside_the_graph
def test_layers_beside_the_graph_are_found_too():
    model = skip()
    model.extra = layers.Dense(3, name="extra")
    assert [layer.name for layer in keras_graph.sublayers_of(model)][-2:] == ["sum", "extra"]


def test_layers_are_told_whether_they_train_and_operations_are_not():
    inputs = keras.Input((4,))
    model = keras.Model(inputs, keras.ops.relu(layers.Dropout(0.5)(inputs)))
    dropout, relu = (node.operation for node in keras_graph.nodes_in_order(model))
    assert keras_graph.takes_training(dropout)
    assert not keras_graph.takes_training(relu)
