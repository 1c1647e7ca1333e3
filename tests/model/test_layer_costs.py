"""What layers cost, estimated from shapes."""

import keras
import pytest
from keras import layers

from keras_mgpu.model import layer_calls
from keras_mgpu.model.layer_costs import layer_costs


def costs_of(*model_layers, shape=(16,), dtype=None):
    model = keras.Sequential([keras.Input(shape, dtype=dtype), *model_layers])
    return {cost.name: cost for cost in layer_costs(layer_calls.from_model(model))}


def test_a_layer_of_twice_the_width_costs_twice_as_much():
    costs = costs_of(layers.Dense(32, name="narrow"), layers.Dense(64, name="wide"))
    assert costs["narrow"].parameters == 16 * 32 + 32
    assert costs["narrow"].weight_bytes == 4 * costs["narrow"].parameters
    assert costs["wide"].compute == pytest.approx(4 * costs["narrow"].compute, rel=0.1)
    assert costs["narrow"].cut_bytes == 32 * 4
    assert costs["wide"].cut_bytes == 64 * 4  # The model returns it.


def test_a_convolution_pays_for_every_place():
    costs = costs_of(
        layers.Conv2D(8, 3, padding="same", name="large"),
        layers.MaxPooling2D(2, name="half"),
        layers.Conv2D(8, 3, padding="same", name="small"),
        shape=(16, 16, 8),
    )
    assert costs["large"].compute == pytest.approx(4 * costs["small"].compute)
    assert costs["half"].compute < 0.05 * costs["small"].compute


def test_a_large_table_is_looked_up_and_not_multiplied():
    costs = costs_of(
        layers.Embedding(10_000, 16, name="table"),
        layers.Dense(16, name="dense"),
        shape=(8,),
        dtype="int32",
    )
    assert costs["table"].parameters == 160_000
    assert costs["table"].compute < costs["dense"].compute


def test_a_recurrent_layer_pays_for_every_step():
    def lstm(length):
        return costs_of(layers.LSTM(16, name="lstm"), shape=(length, 16))["lstm"].compute

    assert lstm(20) == pytest.approx(2 * lstm(10), rel=0.05)
    assert lstm(None) > lstm(10)  # A length that is not known counts as 64.


def test_attention_grows_with_the_square_of_the_length():
    def attention(length):
        inputs = keras.Input((length, 4))
        model = keras.Model(inputs, layers.MultiHeadAttention(1, 4)(inputs, inputs))
        [cost] = layer_costs(layer_calls.from_model(model))
        return cost.compute

    assert attention(2000) > 3.5 * attention(1000)


def test_a_shared_layer_is_paid_for_twice_and_held_once():
    inputs, shared = keras.Input((8,)), layers.Dense(8, name="shared")
    model = keras.Model(inputs, shared(layers.ReLU()(shared(inputs))))
    first, _, again = layer_costs(layer_calls.from_model(model))
    assert again.name == "shared@2"
    assert again.compute == first.compute
    assert (first.parameters, again.parameters) == (72, 0)


def test_a_skip_connection_crosses_every_cut_on_its_way():
    inputs = keras.Input((8,))
    first = layers.Dense(8)(inputs)
    x = layers.Dense(2)(first)
    model = keras.Model(inputs, layers.Concatenate()([x, first]))
    assert [cost.cut_bytes for cost in layer_costs(layer_calls.from_model(model))] == [32, 40, 40]
