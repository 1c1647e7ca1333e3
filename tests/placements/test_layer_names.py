"""Every op finds its layer, however layers are named, nested and shared."""

import cluster
import keras
import numpy as np
import pytest
import tensorflow as tf
from pinned import Pinned
from placed import compiled, data, layers_of, report_of
from simulated import NAMES as DEVICES
from versions import needs_layers_beside_the_graph

import keras_mgpu as km


def test_towers_with_layers_of_the_same_names(devices):
    def tower(name):
        return keras.Sequential([keras.Input((4,)), keras.layers.Dense(4, name="dense")], name=name)

    inputs = keras.Input((4,))
    x = tower("tower")(inputs)
    outputs = keras.layers.Dense(2, name="dense")(tower("tower_1")(tower("tower_2")(x)))
    model = keras.Model(inputs, outputs)
    cuts = ["tower/dense", "tower_2/dense", "tower_1/dense"]
    split = km.PipelineSplit(model, devices, micro_batches=2, cuts=cuts)
    split.compile("adam", "mse")
    layers = layers_of(report_of(split))
    found = [layers[path].got for path in [*cuts, "dense"]]
    assert found == [((name,),) for name in DEVICES]


def test_names_that_end_with_numbers():
    """Layers called `dense`, `dense_1`, … and one of them called three times."""
    inputs = keras.Input((4,))
    layers = [keras.layers.Dense(4, name=name) for name in ("dense", "dense_1", "dense_1_1")]
    x = inputs
    for layer in [layers[1], layers[0], layers[1], layers[2], layers[1]]:
        x = layer(x)
    model = keras.Model(inputs, keras.layers.Dense(2, name="last")(x))
    report = report_of(compiled(model, "sgd"))
    products = [op.layer for op in report.ops if "MatMul" in op.op and "gradient" not in op.name]
    assert products.count("dense_1") == 3
    assert products.count("dense") == products.count("dense_1_1") == 1
    assert layers_of(report)["dense_1"].activation_bytes == 3 * 8 * 4 * 4


NAMES = ["replica_1", "stage_1", "loss", "adam", "compile_loss"]


@pytest.mark.parametrize("way", ["mirrored", "pipeline"])
def test_names_that_keras_and_strategies_use_too(devices, way):
    def make():
        hidden = [keras.layers.Dense(4, name=name) for name in ("first", *NAMES, "last")]
        return keras.Sequential([keras.Input((4,)), *hidden, keras.layers.Dense(2, name="out")])

    if way == "mirrored":
        with cluster.mirrored(devices[:2]).scope():
            model = compiled(make())
        expected = ((DEVICES[0],), (DEVICES[1],)), ((DEVICES[0],), (DEVICES[1],))
    else:
        model = km.PipelineSplit(make(), devices[:2], micro_batches=2, cuts=NAMES[-1:])
        model.compile("adam", "mse")
        expected = ((DEVICES[0],),), ((DEVICES[1],),)
    layers = layers_of(report_of(model))
    for name in NAMES:
        assert (layers[name].got, layers["last"].got) == expected, name
    assert layers["(optimizer)"].num_ops > 50
    assert layers["(loss)"].num_ops > 5


def test_layers_with_the_same_name_have_their_own_rows():
    class Net(keras.Model):
        def __init__(self):
            super().__init__()
            self.blocks = [keras.layers.Dense(4, name="block") for _ in range(2)]
            self.head = keras.layers.Dense(2)

        def call(self, x):
            return self.head(self.blocks[1](self.blocks[0](x)))

    layers = layers_of(km.placement(Net(), data()))
    assert layers["block"].num_parameters == layers["block#2"].num_parameters == 20


def test_layers_inside_layers_and_loops(devices):
    class Block(keras.layers.Layer):
        def __init__(self):
            super().__init__(name="block")
            self.dense = keras.layers.Dense(4)
            self.pinned = Pinned(4, devices[1], name="pinned")

        def call(self, x):
            return self.pinned(self.dense(x))

    class Net(keras.Model):
        def __init__(self):
            super().__init__(name="net")
            self.block = Block()
            self.repeat = keras.layers.RepeatVector(3)
            self.lstm = keras.layers.LSTM(4)
            self.head = keras.layers.Dense(2)

        def call(self, x):
            return self.head(self.lstm(self.repeat(self.block(x))))

    model = compiled(Net())
    layers = layers_of(km.placement(model, data()))
    # Keras creates weights of nested layers without regard to the device asked for. The report
    # shows it: the product runs where it should, and the weight is read elsewhere.
    assert layers["block/pinned"].got == ((DEVICES[1], DEVICES[0]),)
    assert layers["block/pinned"].weights_on == (DEVICES[0],)
    assert layers["block/dense"].got == ((DEVICES[0],),)
    layers = layers_of(report_of(model))
    assert layers["block/pinned"].asked == ((DEVICES[1],),)
    recurrent = [layer for path, layer in layers.items() if path.startswith("lstm")]
    assert sum(layer.num_ops for layer in recurrent) > 20


@needs_layers_beside_the_graph
def test_layers_outside_of_the_functional_graph():
    class Net(keras.Model):
        def __init__(self):
            inputs = keras.Input((4,))
            super().__init__(inputs, keras.layers.Dense(3, name="inside")(inputs))
            self.extra = keras.layers.Dense(2, name="extra")

        def call(self, x):
            return self.extra(super().call(x))

    model = Net()
    model(data()[0])
    layers = layers_of(km.placement(model, data()))
    assert layers["extra"].num_parameters == 8
    assert layers["extra"].got == ((DEVICES[0],),)


def test_shared_weights_are_counted_once():
    class Tied(keras.layers.Layer):
        def __init__(self, other):
            super().__init__(name="tied")
            self.other = other
            self.kernel = None

        def build(self, shape):
            self.kernel = self.other.kernel

        def call(self, x):
            return tf.matmul(x, self.kernel, transpose_b=True)

    inputs = keras.Input((4,))
    first = keras.layers.Dense(6, name="first")
    x = keras.layers.Dropout(0.5)(first(inputs))
    model = keras.Model(inputs, keras.layers.Dense(2)(Tied(first)(x)))
    report = km.placement(model, data())
    assert sum(layer.num_parameters for layer in report.layers) == model.count_params()
    weights = sum(int(np.prod(v.shape)) * 4 for v in model.weights)
    assert sum(each.weight_bytes for each in report.devices) == weights
