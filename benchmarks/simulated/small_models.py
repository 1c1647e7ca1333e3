"""Models of equal blocks, small enough for a CPU to compute while a simulated GPU takes its time.

Each stands for a model that is wider and has more samples. The rates of the GPU are divided by as
much as the work is smaller, so that kernels and copies keep their proportions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
import models
import numpy as np
from keras import layers

WIDTH = 32
TOKENS = 16
CHANNELS = 8


@dataclass(frozen=True)
class SmallModel:
    """A model, and how much larger the one is that it stands for.

    Attributes:
        make: Makes it, given the number of its blocks.
        shape: Of a sample, which is also the shape of its target.
        samples: In a micro-batch.
        wider: How many times as wide the other model is.
        more_rows: How many times as many rows its products have: samples, tokens, pixels.
        time_scale: Factor for all times, so that what the host does takes little beside them.
    """

    make: Callable[[int], keras.Model]
    shape: tuple[int, ...]
    samples: int
    wider: int
    more_rows: int
    time_scale: float

    def cost(self, gpu: Any) -> dict[str, float]:
        """Numbers of a GPU for which this model takes as long as the other one does."""
        bytes_per_byte = self.wider * self.more_rows
        return {
            "flops": gpu.flops / (self.wider * bytes_per_byte),
            "memory_bandwidth": gpu.memory_bandwidth / bytes_per_byte,
            "host_bandwidth": gpu.host_bandwidth / bytes_per_byte,
            "peer_bandwidth": gpu.peer_bandwidth / bytes_per_byte,
            "time_scale": self.time_scale,
        }

    @property
    def bytes_between(self) -> int:
        """What a micro-batch takes from one stage to the next."""
        return 4 * self.samples * int(np.prod(self.shape))

    def batch(self, num_micro_batches: int) -> tuple[np.ndarray, np.ndarray]:
        rng = np.random.default_rng(0)
        shape = (num_micro_batches * self.samples, *self.shape)
        x, y = (rng.standard_normal(shape, dtype="float32") for _ in range(2))
        return x, y


def _transformer(num_blocks: int) -> keras.Model:
    size = models.TransformerSize(blocks=num_blocks, width=WIDTH, heads=2, tokens=TOKENS)
    return models.transformer(size)


def _conv_net(num_blocks: int) -> keras.Model:
    """Residual blocks of one resolution."""
    x = inputs = keras.Input((8, 8, CHANNELS))
    for _ in range(num_blocks):
        hidden = layers.Conv2D(CHANNELS, 3, padding="same", activation="relu")(x)
        hidden = layers.Conv2D(CHANNELS, 3, padding="same")(hidden)
        x = layers.ReLU()(layers.LayerNormalization()(layers.Add()([x, hidden])))
    return keras.Model(inputs, x)


def _mlp(num_blocks: int) -> keras.Model:
    hidden = [layers.Dense(WIDTH, activation="relu") for _ in range(num_blocks)]
    return keras.Sequential([keras.Input((WIDTH,)), *hidden])


# They stand for a transformer of width 1024 with 2048 tokens in a micro-batch, a conv net of 256
# channels with 32 images of 28x28, and dense layers of width 8192 with 1024 samples.
MODELS = {
    "transformer": SmallModel(_transformer, (TOKENS, WIDTH), 2, 32, 64, time_scale=20),
    "conv net": SmallModel(_conv_net, (8, 8, CHANNELS), 2, 32, 196, time_scale=12),
    "MLP": SmallModel(_mlp, (WIDTH,), 8, 256, 128, time_scale=8),
}
