"""Runs the functions of a stage by themselves: to time them, or to see that they run at all."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from keras_mgpu.model.memory_errors import running
from keras_mgpu.pipeline.stage.piece_function import PieceCall
from keras_mgpu.pipeline.stage.stage_program import StageProgram
from keras_mgpu.pipeline.stage.xla import zeros_like_spec

# Gives a value of a tensor's form.
MakeValue = Callable[[tf.Tensor], tf.Tensor]
# Calls a function, given its name and its arguments; returns what it returns.
RunPiece = Callable[[str, PieceCall, Sequence[tf.Tensor]], Sequence[tf.Tensor]]


@dataclass(frozen=True)
class StageMeasurement:
    """What a micro-batch costs in a stage.

    Attributes:
        seconds: How long each function takes, by the word for its kind of op.
        activations: Bytes kept from the forward to the backward.
        for_weights: Bytes kept from the backward to the gradients of the weights.
        inputs: Bytes of what the stage takes.
    """

    seconds: dict[str, float]
    activations: int
    for_weights: int
    inputs: int

    @property
    def recompute_seconds(self) -> float:
        """A stage that does not recompute would take as long as for its forward."""
        return self.seconds.get("recompute", self.seconds["forward"])


def call_once(name: str, function: PieceCall, feeds: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Calls a function."""
    return function(feeds).results


def run_each(program: StageProgram, value: MakeValue, run: RunPiece) -> dict[object, tf.Tensor]:
    """Runs every function once, in order, each with what those before it gave.

    Args:
        program: The functions.
        value: Makes up what the stage takes.
        run: Runs one function.

    Returns:
        For tensors of the stage's graph, by reference, the values they had.
    """
    graph = program.graph
    owners = {tensor.ref(): weight for weight, tensor in graph.handed_in.items()}
    values = {}
    for tensor in graph.arguments:
        # Weights are what they are: making up a second one may be more than a device holds.
        owner = owners.get(tensor.ref())
        values[tensor.ref()] = value(tensor) if owner is None else tf.convert_to_tensor(owner.value)
    for name, function in program.functions.items():
        if name == "backward":
            for given, target in zip(graph.given, graph.targets):
                values[given.ref()] = tf.ones_like(values[target.ref()])
        piece = program.pieces[name]
        results = run(name, function, [values[tensor.ref()] for tensor in piece.feeds])
        values.update((tensor.ref(), result) for tensor, result in zip(piece.fetches, results))
    return values


def measure(program: StageProgram, num_samples: int, num_rounds: int) -> StageMeasurement:
    """Times every function by itself, and counts what is kept between them.

    Args:
        program: The functions.
        num_samples: The size of the micro-batch.
        num_rounds: How often each is run after the first time. The median counts.
    """
    graph, seconds = program.graph, {}

    def run(name: str, function: PieceCall, feeds: Sequence[tf.Tensor]) -> Sequence[tf.Tensor]:
        results, seconds[name] = _timed(function, feeds, graph.stage.device, num_rounds)
        return results

    with running(f"measuring {graph.stage}", "a smaller `num_samples`"):
        values = run_each(program, lambda tensor: zeros_like_spec(tensor, num_samples), run)
    shared = {tensor.ref() for tensor in (*graph.given, *graph.handed_in.values())}

    def num_bytes(tensors: Sequence[tf.Tensor]) -> int:
        own = [tensor.ref() for tensor in tensors if tensor.ref() not in shared]
        return _num_bytes([values[key] for key in own if key in values])

    for_backward = program.pieces["backward"].feeds
    if program.splits_weights:
        for_backward = program.kept.forward + for_backward
    return StageMeasurement(
        seconds=seconds,
        activations=num_bytes(for_backward),
        for_weights=num_bytes(program.pieces["weights"].feeds) if program.splits_weights else 0,
        inputs=num_bytes(graph.arguments),
    )


def _timed(
    function: PieceCall, feeds: Sequence[tf.Tensor], device: str, num_rounds: int
) -> tuple[list[tf.Tensor], float]:
    """Runs a function outside of any step; returns what it returns, and seconds."""

    @tf.function(autograph=False)
    def alone(*tensors: tf.Tensor) -> list[tf.Tensor]:
        called = function(tensors)
        return [*called.results, called.done]  # Without the latter it might be left out.

    with tf.device(device):
        *results, _ = alone(*feeds)
        taken = []
        for _ in range(num_rounds):
            began = time.perf_counter()
            alone(*feeds)
            tf.test.experimental.sync_devices()
            taken.append(time.perf_counter() - began)
    return results, statistics.median(taken)


def _num_bytes(tensors: Sequence[tf.Tensor]) -> int:
    """Bytes of tensors, each piece of memory once: a reshaped tensor is no second one.

    What loops keep for their gradients is in lists that cannot be looked into, and not counted.
    """
    countable = [tensor for tensor in tensors if tensor.dtype.is_numpy_compatible]
    arrays = [np.asarray(tensor.numpy()) for tensor in countable]
    return sum({array.ctypes.data: array.nbytes for array in arrays}.values())
