"""The private progress of stock callbacks."""

import keras
import pytest

from keras_mgpu.internals.keras_callbacks import PRIVATE_STATE

MAKE = {
    "ModelCheckpoint": lambda folder: keras.callbacks.ModelCheckpoint(folder / "a.keras"),
    "SwapEMAWeights": lambda folder: keras.callbacks.SwapEMAWeights(),
    "TensorBoard": lambda folder: keras.callbacks.TensorBoard(folder),
}


@pytest.mark.parametrize("name", PRIVATE_STATE)
def test_keras_still_keeps_it_there(name, tmp_path):
    callback = MAKE[name](tmp_path)
    for attribute in PRIVATE_STATE[name]:
        assert attribute in vars(callback), attribute
