"""Models for trying a machine: a transformer with masks and a tied embedding, and a convolution.

Together they have what most models have: matrix products, convolutions, attention, normalization,
lookups with sparse gradients, a weight that two stages share, and uneven lengths.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers

VOCABULARY = 1000


class TiedEmbedding(layers.Embedding):
    """A table that turns tokens into vectors and, at the other end of a model, vectors into logits.

    Token 0 is padding. Keras has such a layer itself, but only in later versions.
    """

    def call(self, inputs: Any, reverse: bool = False) -> Any:
        if reverse:
            return keras.ops.matmul(inputs, keras.ops.transpose(self.embeddings))
        return super().call(inputs)

    def compute_output_spec(self, inputs: Any, reverse: bool = False) -> Any:
        if reverse:
            return keras.KerasTensor((*inputs.shape[:-1], self.input_dim), self.compute_dtype)
        return keras.KerasTensor((*inputs.shape, self.output_dim), self.compute_dtype)

    def compute_mask(self, inputs: Any, mask: Any = None) -> Any:
        """Vectors come with the mask that their tokens had."""
        is_token = keras.backend.is_int_dtype(inputs.dtype)
        return super().compute_mask(inputs) if is_token else mask


@dataclass(frozen=True)
class TransformerSize:
    """How large a transformer is."""

    width: int
    num_heads: int
    num_blocks: int
    num_tokens: int


def transformer(size: TransformerSize) -> keras.Model:
    """Predicts the next token."""
    tokens = keras.Input((size.num_tokens,), dtype="int32")
    embedding = TiedEmbedding(VOCABULARY, size.width, _initializer(0), mask_zero=True)
    x = embedding(tokens)
    seeds = iter(range(1, 1 + 3 * size.num_blocks))
    for _ in range(size.num_blocks):
        # Without biases: the gradient of a key's bias is zero but for rounding.
        attention = layers.MultiHeadAttention(
            size.num_heads,
            size.width // size.num_heads,
            use_bias=False,
            kernel_initializer=_initializer(next(seeds)),
        )
        attended = attention(x, x, use_causal_mask=True)
        x = layers.LayerNormalization()(layers.Add()([x, attended]))
        y = layers.Dense(4 * size.width, "gelu", kernel_initializer=_initializer(next(seeds)))(x)
        y = layers.Dense(size.width, kernel_initializer=_initializer(next(seeds)))(y)
        x = layers.LayerNormalization()(layers.Add()([x, y]))
    return keras.Model(tokens, embedding(x, reverse=True))


def convolution(num_blocks: int) -> keras.Model:
    """Classifies small images."""
    inputs = keras.Input((16, 16, 3))
    x = layers.Conv2D(16, 3, padding="same", kernel_initializer=_initializer(0))(inputs)
    for seed in range(1, num_blocks + 1):
        y = layers.GroupNormalization(4)(x)
        y = layers.Conv2D(
            16, 3, padding="same", activation="relu", kernel_initializer=_initializer(seed)
        )(y)
        x = x + y
    x = layers.GlobalAveragePooling2D()(layers.MaxPooling2D()(x))
    return keras.Model(inputs, layers.Dense(10, kernel_initializer=_initializer(99))(x))


def sentences(num_samples: int, num_tokens: int) -> tuple[np.ndarray, np.ndarray]:
    """Tokens of sentences that are of very different lengths, and the tokens that follow."""
    random = np.random.default_rng(0)
    x = random.integers(1, VOCABULARY, (num_samples, num_tokens + 1))
    lengths = random.integers(1, num_tokens + 1, num_samples)
    x[np.arange(num_tokens + 1)[None] >= lengths[:, None]] = 0
    return x[:, :-1].astype("int32"), x[:, 1:].astype("int32")


def images(num_samples: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    x = random.normal(size=(num_samples, 16, 16, 3)).astype("float32")
    return x, random.integers(0, 10, num_samples).astype("int32")


def on_cpu(make: Any, *args: Any) -> keras.Model:
    """Makes a model whose variables are in host memory, wherever they go later."""
    with tf.device("/CPU:0"):
        return make(*args)


def _initializer(seed: int) -> Any:
    """The same numbers on every machine, whatever was drawn before."""
    return keras.initializers.GlorotUniform(seed=seed)
