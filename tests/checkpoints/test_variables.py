"""Variables by key, their copies in host memory, and what does not match."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from simulated import NAMES

from keras_mgpu.checkpoints import host_copies
from keras_mgpu.checkpoints.manifest import TensorEntry
from keras_mgpu.checkpoints.mismatch import mismatch_of
from keras_mgpu.checkpoints.training_state import TrainingState
from keras_mgpu.checkpoints.variables import metric_variables_of, replica_state_of, variables_of


@pytest.fixture
def model():
    inner = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, name="dense")], name="in")
    model = keras.Sequential([keras.Input((4,)), inner, keras.layers.BatchNormalization(name="bn")])
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse", metrics=["mae"])
    model.optimizer.build(model.trainable_variables)
    return model


def test_keys_are_paths(model):
    found = variables_of(model, model.optimizer)
    assert set(found) >= {
        "model/in/dense/kernel",
        "model/bn/moving_mean",
        "optimizer/momentum/in/dense/kernel",
        "optimizer/iteration",
        "optimizer/learning_rate",
    }
    assert found["model/in/dense/kernel"] is model.layers[0].layers[0].kernel
    state = replica_state_of(model, found)
    assert set(state) == {"model/bn/moving_mean", "model/bn/moving_variance"}


def test_metrics_have_keys_too(model):
    model.train_on_batch(np.ones((2, 4)), np.ones((2, 3)))
    assert any(key.startswith("metrics/") for key in metric_variables_of(model))


def test_values_in_host_memory_and_back():
    variables = {"a": keras.Variable([1.0, 2.0]), "b": keras.Variable([3.0])}
    saved = host_copies.to_host(variables)
    for variable in variables.values():
        variable.assign(variable * 0)
    assert saved["a"].numpy().tolist() == [1, 2]  # A later assignment does not change it.
    saved["b"] = tf.constant([1.0, 1.0])  # Another shape: left alone.
    host_copies.assign(variables, saved)
    assert [v.numpy().tolist() for v in variables.values()] == [[1, 2], [0]]
    assert saved["a"].device.endswith("CPU:0")
    assert host_copies.device_of(variables["a"]).endswith(NAMES[0])


def test_a_device_without_room_for_a_value(monkeypatch):
    def overwrite(variable, value):
        raise tf.errors.InternalError(None, None, "Dst tensor is not initialized.")

    variable = keras.Variable([1.0, 2.0])
    monkeypatch.setattr(host_copies.memory, "overwrite", overwrite)
    with pytest.raises(tf.errors.ResourceExhaustedError) as caught:
        host_copies.assign({"model/dense/kernel": variable}, {"model/dense/kernel": tf.zeros(2)})
    message = str(caught.value)
    assert message.startswith("Out of memory while restoring model/dense/kernel on /")
    assert "To be stored: 8 B in 1 variable." in message


def test_copies_of_replicas():
    variable = keras.Variable([1.0])
    saved = host_copies.copies_to_host({"x": variable}, worker=0)
    assert list(saved) == ["workers/0/0/x"]
    saved["workers/1/0/x"] = tf.constant([5.0])
    assert host_copies.assign_copies({"x": variable}, saved, worker=1, num_workers=2) == []
    assert variable.numpy().tolist() == [5]
    # Of another number of workers, counts are summed up.
    assert host_copies.assign_copies({"x": variable}, saved, worker=0, num_workers=1) == ["x"]
    host_copies.assign_counts({"x": variable}, saved, worker=0, num_workers=1)
    assert variable.numpy().tolist() == [6]


def test_every_mismatch_is_listed():
    variables = {"model/a": keras.Variable([1.0]), "model/b": keras.Variable([1.0])}
    saved = [TensorEntry("model/b", (2,), "float32"), TensorEntry("model/c", (), "int32")]
    found = mismatch_of([*saved, TensorEntry("workers/0/0/x", (), "int32")], variables)
    assert (found.missing, found.unexpected) == (("model/a",), ("model/c",))
    assert "model/b: float32[2] in the checkpoint, float32[1] in the model" in str(found)
    assert not mismatch_of(
        [TensorEntry("model/a", (1,), "float32")], {"model/a": variables["model/a"]}
    )


def test_a_snapshot_of_training(model):
    state = TrainingState(model)
    taken = state.snapshot(7, 1, 2, {"loss": 0.5}, {"callbacks": {}}, arrays={"best": [1.0]})
    manifest = taken.manifest
    assert (manifest.step, manifest.epoch, manifest.batch) == (7, 1, 2)
    keys = {key for part in taken.parts.values() for key in part}
    assert keys >= {*state.variables, "best"}
    assert taken.own_state == {"place": None}
    with pytest.raises(ValueError, match="does not match the model"):
        state.check(manifest)
