"""What a stage gives is on its way before its device is given more to do.

A copy waits for all kernels that its device was given before. The order of launches and copies
tells whether it waits for too many, and does not depend on how long any of them takes.
"""

import keras
import numpy as np
import simgpu
from keras import layers

import keras_mgpu as km
from keras_mgpu.blueprint.schedule import piece_in

NUM_MICRO_BATCHES = 16
X = np.ones((2 * NUM_MICRO_BATCHES, 8), "float32")
CROSSING = 2 * 8 * 4  # Bytes of a micro-batch's values, or of their gradient.


def launches_and_copies(split):
    """For each micro-batch in the last stage, when its backward was launched, and its copy."""
    simgpu.reset()
    split.train_on_batch(X, X)
    launches = [each.enqueued for each in simgpu.kernels() if piece_in(each.name) == ("B", 1)]
    copies = [
        copy.enqueued
        for copy in simgpu.copies()
        if (copy.source, copy.target, copy.num_bytes) == (1, 0, CROSSING)
    ]
    assert len(copies) == NUM_MICRO_BATCHES
    return launches[:: len(launches) // NUM_MICRO_BATCHES], copies


def test_gradients_are_sent_before_the_next_micro_batch_is_launched(devices):
    """In GPipe, the last device has all of its backward ops to launch in a row."""
    hidden = [layers.Dense(8) for _ in range(4)]
    model = keras.Sequential([keras.Input((8,)), *hidden])
    split = km.PipelineSplit(model, devices[:2], NUM_MICRO_BATCHES, schedule="gpipe")
    split.compile("sgd", "mse", jit_compile=False)
    split.train_on_batch(X, X)
    for _ in range(5):
        launches, copies = launches_and_copies(split)
        late = [copy > following for copy, following in zip(copies, launches[1:])]
        assert not any(late)
