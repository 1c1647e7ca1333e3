"""Names the stage in which something went wrong, and what would help.

A pipeline runs a model's layers out of sight of the line of code that called `fit`. So whatever
is raised there is raised again with the stage, its layers and its device in front.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import tensorflow as tf

from keras_mgpu.blueprint.schedule import stage_in
from keras_mgpu.model.memory_errors import OutOfMemoryError
from keras_mgpu.model.stages import Stage

OUT_OF_MEMORY_ADVICE = (
    "To reduce its memory, use a smaller batch; more `micro_batches` with "
    'schedule="1f1b"; recompute="auto"; one more device, so that stages get smaller; or `cuts` '
    "that give this stage fewer layers."
)


@contextlib.contextmanager
def in_stage(stage: Stage) -> Iterator[None]:
    """Errors raised by Python while a stage is called or traced name the stage."""
    try:
        yield
    except OutOfMemoryError:
        raise  # It says so itself, and more.
    except tf.errors.OpError as error:
        raise explained(error, str(stage)) from error
    except Exception as error:
        raise _again(error, f"In {stage}: {error}") from error


@contextlib.contextmanager
def in_step(stages: Sequence[Stage]) -> Iterator[None]:
    """Errors raised by TensorFlow while a traced step runs name the stage they came from."""
    try:
        yield
    except (OutOfMemoryError, tf.errors.OutOfRangeError):
        raise  # The former says all by itself. At the latter the data has ended: Keras expects it.
    except tf.errors.OpError as error:
        stage = stage_in(f"{error.message}")
        if stage is None or stage >= len(stages):
            raise
        raise explained(error, str(stages[stage])) from error


def explained(error: tf.errors.OpError, stage: str) -> tf.errors.OpError:
    """The same TensorFlow error with the stage in front, and advice if memory ran out."""
    message = f"In {stage}: {error.message}"
    if isinstance(error, tf.errors.ResourceExhaustedError):
        message = f"Out of memory in {stage}. {OUT_OF_MEMORY_ADVICE}\n{error.message}"
    return type(error)(error.node_def, error.op, message)


def _again(error: Exception, message: str) -> Exception:
    """An error of the same type with another message, where the type allows for it."""
    try:
        return type(error)(message)
    except TypeError:
        return RuntimeError(message)
