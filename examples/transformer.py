"""A transformer in a pipeline: plan, schedule, check, predicted and measured bubble.

python examples/transformer.py --devices 2 --schedule zero_bubble
"""

import argparse
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
from keras import layers

import keras_mgpu as km

LENGTH, NUM_TOKENS, BATCH = 32, 50, 32


def main():
    options = parse_options()
    devices = km.pick_devices(options.devices)
    keras.utils.set_random_seed(0)
    model = transformer(*((32, 1) if options.tiny else (128, 6)))
    split = km.PipelineSplit(model, devices, micro_batches=8, schedule=options.schedule)
    split.compile(
        keras.optimizers.AdamW(1e-3, clipnorm=1.0),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    print(split.plan.table(split.devices))
    print()
    print(km.replay(split.schedule).draw())
    x, y = sorting_task(128 if options.tiny else 4096)
    print()
    print(split.verify(x[:BATCH], y[:BATCH]))
    print()
    split.fit(x, y, batch_size=BATCH, epochs=1 if options.tiny else 4, verbose=2)
    measured = split.profile(x[:BATCH], y[:BATCH])
    print(
        f"\nbubble: predicted {measured.predicted.bubble:.0%}, measured "
        f"{measured.timeline.bubble:.0%}; stage {measured.critical_stage} takes longest; busy: "
        + ", ".join(f"{device} {busy:.0%}" for device, busy in zip(devices, measured.busy))
    )


def transformer(width, depth):
    """Returns a model that sorts tokens. Token 0 is padding."""
    tokens = keras.Input((LENGTH,), dtype="int32")
    x = layers.Embedding(NUM_TOKENS, width, mask_zero=True)(tokens)
    for _ in range(depth):
        y = layers.LayerNormalization()(x)
        y = layers.MultiHeadAttention(4, width // 4, dropout=0.1)(y, y)
        x = layers.Add()([x, y])
        y = layers.LayerNormalization()(x)
        y = layers.Dense(4 * width, activation="gelu")(y)
        x = layers.Add()([x, layers.Dense(width)(y)])
    return keras.Model(tokens, layers.Dense(NUM_TOKENS)(x), name="transformer")


def sorting_task(count):
    """Returns sequences of different lengths, and the same sequences sorted."""
    rng = np.random.default_rng(0)
    x = rng.integers(1, NUM_TOKENS, (count, LENGTH))
    x[np.arange(LENGTH) >= rng.integers(LENGTH // 4, LENGTH + 1, (count, 1))] = 0
    y = np.sort(np.where(x == 0, NUM_TOKENS, x), axis=1)
    return x, np.where(y == NUM_TOKENS, 0, y)


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--devices", type=int, default=2, help="number of devices (default: 2)")
    parser.add_argument(
        "--schedule",
        default="1f1b",
        choices=["1f1b", "gpipe", "zero_bubble"],
        help="(default: 1f1b)",
    )
    parser.add_argument("--tiny", action="store_true", help="a tiny model, for tests")
    return parser.parse_args()


if __name__ == "__main__":
    main()
