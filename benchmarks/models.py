"""The models and data that are measured: stock Keras layers, random numbers from a fixed seed."""

from __future__ import annotations

from dataclasses import dataclass

import keras
import numpy as np
from keras import layers

Arrays = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class TransformerSize:
    """How large a transformer is; the defaults are the benchmark's."""

    blocks: int = 8
    width: int = 256
    heads: int = 4
    tokens: int = 128


def transformer(size: TransformerSize) -> keras.Model:
    """A stack of post-norm blocks that maps a sequence of vectors to another."""
    inputs = keras.Input((size.tokens, size.width))
    outputs = inputs
    for _ in range(size.blocks):
        outputs = _transformer_block(outputs, size)
    return keras.Model(inputs, outputs)


def _transformer_block(x: keras.KerasTensor, size: TransformerSize) -> keras.KerasTensor:
    attended = layers.MultiHeadAttention(size.heads, size.width // size.heads)(x, x)
    x = layers.LayerNormalization()(layers.Add()([x, attended]))
    hidden = layers.Dense(4 * size.width, activation="gelu")(x)
    hidden = layers.Dense(size.width)(hidden)
    return layers.LayerNormalization()(layers.Add()([x, hidden]))


def sequences(num: int, size: TransformerSize) -> Arrays:
    """Random sequences, and others to map them to."""
    rng = np.random.default_rng(0)
    shape = (num, size.tokens, size.width)
    x, y = (rng.standard_normal(shape, dtype="float32") for _ in range(2))
    return x, y


def residual_conv_net(filters: tuple[int, ...] = (16, 32, 64)) -> keras.Model:
    """A small ResNet for 32x32 images: one residual block a resolution."""
    inputs = keras.Input((32, 32, 3))
    x = _conv(inputs, filters[0], strides=1)
    for number, width in enumerate(filters):
        x = _residual_block(x, width, strides=1 if number == 0 else 2)
    return keras.Model(inputs, layers.Dense(10)(layers.GlobalAveragePooling2D()(x)))


def _residual_block(x: keras.KerasTensor, filters: int, strides: int) -> keras.KerasTensor:
    shortcut = x if strides == 1 else layers.Conv2D(filters, 1, strides=strides)(x)
    x = _conv(x, filters, strides)
    x = layers.BatchNormalization()(layers.Conv2D(filters, 3, padding="same", use_bias=False)(x))
    return layers.ReLU()(layers.Add()([x, shortcut]))


def _conv(x: keras.KerasTensor, filters: int, strides: int) -> keras.KerasTensor:
    x = layers.Conv2D(filters, 3, strides=strides, padding="same", use_bias=False)(x)
    return layers.ReLU()(layers.BatchNormalization()(x))


def images(num: int) -> Arrays:
    """Random images in ten classes."""
    rng = np.random.default_rng(0)
    return rng.standard_normal((num, 32, 32, 3), dtype="float32"), rng.integers(0, 10, num)


def mlp(width: int, depth: int = 3) -> keras.Model:
    """Dense layers of equal width, and ten classes."""
    hidden = [layers.Dense(width, activation="relu") for _ in range(depth)]
    return keras.Sequential([keras.Input((width,)), *hidden, layers.Dense(10)])


def vectors(num: int, width: int) -> Arrays:
    """Random vectors in ten classes."""
    rng = np.random.default_rng(0)
    return rng.standard_normal((num, width), dtype="float32"), rng.integers(0, 10, num)
