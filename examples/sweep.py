"""Which batch size, and how many micro-batches? Measures a grid and plots it.

python examples/sweep.py     # prints a table and writes sweep.png
"""

import argparse
import os
import statistics
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import matplotlib
import numpy as np
from keras import layers

import keras_mgpu as km

matplotlib.use("Agg")
from matplotlib import pyplot

LENGTH, WIDTH = 32, 64


def main():
    options = parse_options()
    devices = km.pick_devices(options.devices)
    batch_sizes = [16] if options.tiny else [16, 32, 64, 128]
    micro_batches = [1, 4] if options.tiny else [1, 2, 4, 8, 16]
    speeds = {}
    print(f"{'batch':>6}{'micro-batches':>15}{'bubble':>9}{'samples/s':>11}")
    for count in micro_batches:
        split = make_split(devices, count, depth=2 if options.tiny else 4)
        bubble = km.replay(split.schedule).bubble
        for size in batch_sizes:
            speeds[size, count] = size / seconds_per_step(split, size)
            print(f"{size:6}{count:15}{bubble:9.0%}{speeds[size, count]:11.0f}")
    size, count = max(speeds, key=speeds.get)
    print(f"\nFastest: batch size {size} with {count} micro-batches.")
    draw(speeds, batch_sizes, micro_batches, options.plot)
    print(f"Plot: {options.plot}")


def make_split(devices, micro_batches, depth):
    keras.utils.set_random_seed(0)
    inputs = x = keras.Input((LENGTH, WIDTH))
    for _ in range(depth):
        x = layers.LayerNormalization()(layers.Add()([x, layers.MultiHeadAttention(4, 16)(x, x)]))
        hidden = layers.Dense(4 * WIDTH, activation="gelu")(x)
        x = layers.LayerNormalization()(layers.Add()([x, layers.Dense(WIDTH)(hidden)]))
    split = km.PipelineSplit(keras.Model(inputs, x), devices, micro_batches=micro_batches)
    split.compile("adam", "mse")
    return split


def seconds_per_step(split, size):
    """Returns the median of some steps, without the first, which includes tracing."""
    x = np.random.default_rng(0).standard_normal((size, LENGTH, WIDTH)).astype("float32")
    times = []
    for _ in range(6):
        begin = time.perf_counter()
        split.train_on_batch(x, x)
        times.append(time.perf_counter() - begin)
    return statistics.median(times[1:])


def draw(speeds, batch_sizes, micro_batches, path):
    figure, axes = pyplot.subplots(figsize=(7, 4))
    for size in batch_sizes:
        numbers = [speeds[size, count] for count in micro_batches]
        axes.plot(micro_batches, numbers, marker="o", label=f"batch size {size}")
    axes.set_xscale("log", base=2)
    axes.set_xticks(micro_batches, [str(count) for count in micro_batches])
    axes.set_xlabel("micro-batches")
    axes.set_ylabel("samples per second")
    axes.set_ylim(bottom=0)
    axes.legend()
    figure.savefig(path, bbox_inches="tight", dpi=120)


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--devices", type=int, default=2, help="number of devices (default: 2)")
    parser.add_argument("--plot", default="sweep.png", help="file of the plot (default: sweep.png)")
    parser.add_argument("--tiny", action="store_true", help="a tiny model, for tests")
    return parser.parse_args()


if __name__ == "__main__":
    main()
