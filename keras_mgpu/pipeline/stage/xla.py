"""Compiles the functions of a stage with XLA, or finds out that it cannot be done.

XLA may not touch what lies on another device, so it can never compile a whole step; but a stage
lies on one device. Whether it can compile a stage is tried before the first step, on zeros of the
right shapes: a step that fails halfway cannot be undone. What compiled then, the step finds again.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from keras_mgpu.model.memory_errors import SMALLER_STAGES, OutOfMemoryError, running
from keras_mgpu.model.stages import Stage
from keras_mgpu.pipeline.stage.graph_cut import GraphOps, Piece
from keras_mgpu.pipeline.stage.piece_function import Called, PieceMaker

logger = logging.getLogger("keras_mgpu")

# How XLA names the op that it cannot compile, in the forms its messages have.
NAMES_OP = (
    r"on XLA_\w+_JIT: (\w+)",
    r"\{\{(?:function_node|node) \S*?(\w+)\}\}",
    r"\[Op:(\w+)\]",
)
SMALLER_MICRO_BATCHES = f"a smaller batch; more `micro_batches`; {SMALLER_STAGES}"
OTHER_SIZE = 2  # Stands for every size that is not known before the step runs.


class StageCompiler:
    """Whether a stage is compiled: yes, until something in it shows that it cannot be.

    Args:
        stage: The stage.
    """

    def __init__(self, stage: Stage) -> None:
        self.is_on = True
        self._stage = stage
        self._num_rows = OTHER_SIZE

    def expect_rows(self, num_rows: int | None) -> None:
        """Says how many samples a micro-batch will have, if that is known."""
        self._num_rows = num_rows or OTHER_SIZE

    def compiled_or_not(self, make: Callable[[bool], Any]) -> Any:
        """Makes a function, compiled if that works.

        Args:
            make: Makes the concrete function, given whether it should be compiled.
        """
        if not self.is_on:
            return make(False)
        function = make(True)
        specs = function.structured_input_signature[0]
        self.try_out(lambda: function(*map(self.zeros, specs)))
        return function if self.is_on else make(False)

    def try_out(self, run: Callable[[], Any]) -> None:
        """Runs something compiled, outside of any graph; switches off what does not work.

        Raises:
            OutOfMemoryError: If the device has no room for it.
        """
        try:
            with (
                running(f"trying {self._stage} with XLA", SMALLER_MICRO_BATCHES),
                tf.init_scope(),
                tf.device(self._stage.device),
            ):
                run()
        except OutOfMemoryError:
            raise  # That does not depend on XLA.
        except (tf.errors.OpError, ValueError, TypeError, NotImplementedError) as error:
            self.is_on = False
            logger.warning("%s runs without XLA, which cannot compile %s.", self._stage, _op(error))

    def zeros(self, spec: Any) -> tf.Tensor:
        """A value of this form; sizes that are not known are made up."""
        return zeros_like_spec(spec, self._num_rows)


@dataclass(frozen=True, eq=False)
class CompiledPiece:
    """A piece of a graph as a function that XLA compiles; called as a `PieceFunction` is."""

    function: Any

    def __call__(self, tensors: Sequence[tf.Tensor]) -> Called:
        *results, done = self.function(*tensors)
        return Called(results, done)


class CompiledPieceMaker:
    """Makes compiled functions of pieces of a graph."""

    def __call__(self, graph: GraphOps, piece: Piece, name: str) -> CompiledPiece:
        """Makes one of a piece; its name begins with `name`."""
        inner = PieceMaker(stays_a_call=False)(graph, piece, name)

        def call(*tensors: tf.Tensor) -> list[tf.Tensor]:
            # The last one is for others to wait for, where nothing else is returned.
            return [*inner(tensors).results, tf.zeros(())]

        specs = [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in piece.feeds]
        compiled = tf.function(call, autograph=False, jit_compile=True)
        return CompiledPiece(compiled.get_concrete_function(*specs))


def zeros_like_spec(spec: Any, num_rows: int) -> tf.Tensor:
    """Zeros of a form of which only the number of rows may be unknown, or else is made up."""
    sizes = [OTHER_SIZE if size is None else size for size in spec.shape]
    if sizes and spec.shape[0] is None:
        sizes[0] = num_rows
    return tf.zeros(sizes, spec.dtype)


def _op(error: Exception) -> str:
    message = f"{error}"
    named = next((m for m in (re.search(p, message) for p in NAMES_OP) if m), None)
    return f"the op {named.group(1)}" if named else f"it ({message.splitlines()[0]})"
