"""Says in which stage something went wrong, and what would help.

A pipeline runs a model's layers out of sight of the line of code that called `fit`. So whatever
is raised there is raised again with the stage, its layers and its device in front.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

OUT_OF_MEMORY_ADVICE = (
    "Things that lower its memory: a smaller batch; more `micro_batches` with "
    'schedule="1f1b"; recompute="auto"; one more device, so that stages get smaller; or `cuts` '
    "that give this stage fewer layers."
)


@contextlib.contextmanager
def in_stage(stage: Any) -> Iterator[None]:
    """Whatever Python raises while a stage is called or traced names the stage."""
    try:
        yield
    except tf.errors.OpError as error:
        raise explained(error, str(stage)) from error
    except Exception as error:
        raise _again(error, f"In {stage}: {error}") from error


@contextlib.contextmanager
def in_step(stages: Sequence[Any]) -> Iterator[None]:
    """Whatever TensorFlow raises while a traced step runs names the stage it came from."""
    try:
        yield
    except tf.errors.OutOfRangeError:
        raise  # The data has ended; Keras waits for this.
    except tf.errors.OpError as error:
        named = re.search(r"\bstage_(\d+)/", f"{error.message}")
        if named is None or int(named.group(1)) >= len(stages):
            raise
        raise explained(error, str(stages[int(named.group(1))])) from error


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
