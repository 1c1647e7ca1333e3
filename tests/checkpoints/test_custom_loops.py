"""Saving, restoring and exporting without callbacks."""

import keras
import numpy as np
import pytest

import keras_mgpu as km
from keras_mgpu.checkpoints.custom_loops import (
    latest_checkpoint,
    restore_checkpoint,
    save_checkpoint,
)
from keras_mgpu.checkpoints.export import export
from keras_mgpu.checkpoints.store import parse_path


def make_model():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, name="dense")])
    model.compile("sgd", "mse")
    return model


def test_a_run_without_callbacks(tmp_path):
    model, data = make_model(), km.resumable(np.arange(8), batch_size=2, shuffle=False)
    next(iter(data))
    assert latest_checkpoint(tmp_path) is None
    assert restore_checkpoint(tmp_path, model) is None
    path = save_checkpoint(tmp_path, model, step=5, batch=1, values={"loss": 0.5}, data=data)
    assert latest_checkpoint(tmp_path) == path
    other, again = make_model(), km.resumable(np.arange(8), batch_size=2, shuffle=False)
    restored = restore_checkpoint(path, other, data=again)
    assert (restored.path, restored.step, restored.batch) == (path, 5, 1)
    assert restored.values == {"loss": 0.5}
    assert next(iter(again)).numpy().tolist() == [2, 3]
    np.testing.assert_array_equal(model.get_weights()[0], other.get_weights()[0])


def test_keep_last(tmp_path):
    model = make_model()
    for step in range(3):
        save_checkpoint(tmp_path, model, step=step, keep_last=2)
    assert sorted(parse_path(str(path)).step for path in tmp_path.iterdir()) == [1, 2]


def test_data_without_a_saved_position(tmp_path, caplog):
    model = make_model()
    save_checkpoint(tmp_path, model)
    restore_checkpoint(tmp_path, model, data=km.resumable(np.arange(8)))
    assert "The data starts from the beginning" in caplog.text


def test_export(tmp_path):
    model = make_model()
    entry = parse_path(save_checkpoint(tmp_path, model))
    export(entry, str(tmp_path / "model.keras"))
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(model.get_weights()[0], loaded.get_weights()[0])
    with pytest.raises(ValueError, match=r"must end with .keras. Received: 'model.h5'"):
        export(entry, "model.h5")
