"""Code that works with a model, split or not."""

import keras

from keras_mgpu import PipelineSplit
from keras_mgpu.model.split_model import is_split, unsplit


def test_a_split_model_is_known_by_what_it_has(devices):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(2), keras.layers.Dense(1)])
    split = PipelineSplit(model, devices[:2], micro_batches=2)
    assert is_split(split)
    assert unsplit(split) is model
    assert not is_split(model)
    assert unsplit(model) is model
