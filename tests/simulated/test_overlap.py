"""Stages of a pipeline work at the same time on GPUs that take their time."""

import keras
import numpy as np
import simgpu
from keras import layers

import keras_mgpu as km
from keras_mgpu.blueprint.schedule import piece_in

X, Y = np.ones((16, 8), "float32"), np.zeros((16, 8), "float32")


def products(devices, micro_batches):
    """For each of two stages, the matrix products of its backward ops in a step."""
    hidden = [layers.Dense(8) for _ in range(8)]
    model = keras.Sequential([keras.Input((8,)), *hidden])
    split = km.PipelineSplit(model, devices[:2], micro_batches, schedule="gpipe")
    split.compile("sgd", "mse")
    split.train_on_batch(X, Y)
    simgpu.set_cost(launch=0.02)  # Far longer than a busy host may take to launch a kernel.
    simgpu.reset()
    try:
        split.train_on_batch(X, Y)
    finally:
        simgpu.set_cost()
    found = [each for each in simgpu.kernels() if each.op == "MatMul" and "gradients" in each.name]
    return [[each for each in found if each.device == index] for index in range(2)]


def test_micro_batches_let_stages_work_at_the_same_time(devices):
    """The first stage goes backward before the second has begun to with its last micro-batch."""
    num_products = 2 * 4  # For the inputs and the weights of four layers.
    first, second = products(devices, micro_batches=4)
    assert {piece_in(each.name) for each in first} == {("B", 0)}
    assert {piece_in(each.name) for each in second} == {("B", 1)}
    assert len(second) == 4 * num_products
    assert first[0].begin < second[3 * num_products].begin
