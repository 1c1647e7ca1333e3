"""From the name of an op to the layer it belongs to."""

import keras
import pytest

from keras_mgpu.placements.layer_scopes import LayerScopes


@pytest.fixture(scope="module")
def scopes():
    inner = keras.Sequential([keras.Input((4,)), keras.layers.Dense(4, name="dense")], name="tower")
    layers = [keras.layers.Dense(4, name=name) for name in ("dense", "dense_1", "loss")]
    model = keras.Sequential([keras.Input((4,)), inner, *layers], name="net")
    return LayerScopes(model, ["adam"])


def test_every_layer_has_a_path(scopes):
    assert [node.path for node in scopes] == [
        "(model)",
        "tower",
        "tower/dense",
        "dense",
        "dense_1",
        "loss",
    ]


@pytest.mark.parametrize(
    ("name", "owner"),
    [
        ("net_1/dense_1/MatMul", ("dense", 0)),
        ("net_1/dense_1_2/MatMul", ("dense_1", 0)),
        ("net_1/tower_1/dense_1/MatMul", ("tower/dense", 0)),
        ("stage_0/tower./dense_1/MatMul", ("tower/dense", 0)),
        ("gradient_tape/net_1/dense_3/MatMul/MatMul", ("dense", 0)),
        ("replica_1/net_1/dense_1/MatMul", ("dense", 1)),
        ("net_1/Cast", ("(model)", 0)),
        ("net_1/loss_1/MatMul", ("loss", 0)),
        ("compile_loss/mse/sub", ("(loss)", 0)),
        ("StatefulPartitionedCall/adam/Mul_1", ("(optimizer)", 0)),
        ("replica_1/adam/Mul", ("(optimizer)", 1)),
        ("IteratorGetNext", ("(rest)", 0)),
    ],
)
def test_the_owner_of_an_op(scopes, name, owner):
    assert scopes.owner_of(name) == owner
