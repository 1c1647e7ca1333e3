"""Splits a language model that does not need to fit on one device, and shows where its bytes are.

A model is built before it is split. Built in host memory, it can be larger than any GPU.
"""

import argparse
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import tensorflow as tf
from keras import layers

import keras_mgpu

LENGTH = 64


def main():
    options = parse_options()
    devices = choose_devices(options.devices)

    with tf.device("/CPU:0"):
        model = language_model(*((100, 32, 4) if options.tiny else (8_000, 512, 8)))
    print(f"{model.count_params():,} weights. Built on the host:\n")
    show_bytes(model.weights, slots=[])

    split = keras_mgpu.PipelineSplit(model, devices, micro_batches=4)
    split.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    # The first step creates the optimizer slots: Adam has two per weight.
    tokens = np.random.default_rng(0).integers(0, 100, (8, LENGTH + 1))
    loss = split.train_on_batch(tokens[:, :-1], tokens[:, 1:])
    print(f"\nSplit, after a step of loss {float(loss):.3f}:\n")
    show_bytes(split.weights, split.optimizer.variables)
    print()
    print(split.plan.table(split.devices))


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--devices", type=int, default=2, metavar="N", help="number of devices (default: 2)"
    )
    parser.add_argument("--tiny", action="store_true", help="a tiny model, for tests")
    return parser.parse_args()


def choose_devices(num_devices):
    """Returns GPUs, or logical CPU devices other than the one that stands for the host."""
    if len(tf.config.list_physical_devices("GPU")) >= num_devices:
        return [f"/GPU:{index}" for index in range(num_devices)]
    return keras_mgpu.logical_devices(num_devices + 1)[1:]


def language_model(num_tokens, width, depth):
    """Returns a decoder-only transformer built from stock Keras layers."""
    tokens = keras.Input((LENGTH,), dtype="int32")
    x = layers.Embedding(num_tokens, width)(tokens)
    for _ in range(depth):
        y = layers.LayerNormalization()(x)
        y = layers.MultiHeadAttention(4, width // 4)(y, y, use_causal_mask=True)
        x = layers.Add()([x, y])
        y = layers.LayerNormalization()(x)
        y = layers.Dense(4 * width, activation="gelu")(y)
        x = layers.Add()([x, layers.Dense(width)(y)])
    return keras.Model(tokens, layers.Dense(num_tokens)(x), name="language_model")


def show_bytes(weights, slots):
    weight_bytes, slot_bytes = bytes_by_device(weights), bytes_by_device(slots)
    print(f"{'device':10}{'weights':>12}{'optimizer':>12}")
    for device in sorted({"CPU:0", *weight_bytes, *slot_bytes}):
        numbers = [sizes.get(device, 0) / 1e6 for sizes in (weight_bytes, slot_bytes)]
        print(f"{device:10}" + "".join(f"{number:9.2f} MB" for number in numbers))


def bytes_by_device(variables):
    sizes = {}
    for variable in variables:
        device = variable.value.device.split("device:")[-1]
        size = np.dtype(variable.dtype).itemsize * int(np.prod(variable.shape))
        sizes[device] = sizes.get(device, 0) + size
    return sizes


if __name__ == "__main__":
    main()
