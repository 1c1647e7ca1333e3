"""Names the stage in which something went wrong, and what would help.

A pipeline runs a model's layers out of sight of the line of code that called `fit`. So whatever
is raised there is raised again with the stage, its layers and its device in front.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Sequence

import tensorflow as tf

from keras_mgpu.blueprint.schedule import stage_in, stage_scope
from keras_mgpu.model.memory_errors import OutOfMemoryError
from keras_mgpu.model.stages import Stage

OUT_OF_MEMORY_ADVICE = (
    "To reduce its memory, use a smaller batch; more `micro_batches` with "
    'schedule="1f1b"; recompute="auto"; one more device, so that stages get smaller; or `cuts` '
    "that give this stage fewer layers."
)
# What TensorFlow says if a tensor that is copied to a GPU finds no memory there.
_NO_ROOM_FOR_COPY = "Dst tensor is not initialized"


def no_layer() -> str:
    return ""


@contextlib.contextmanager
def in_stage(stage: Stage, layer: Callable[[], str] = no_layer) -> Iterator[None]:
    """Errors raised by Python while a stage is called or traced name the stage.

    Args:
        stage: The stage.
        layer: Returns the name of the layer that is running, or `""`.
    """
    try:
        yield
    except OutOfMemoryError:
        raise  # It says so itself, and more.
    except tf.errors.OpError as error:
        raise explained(error, _place(stage, layer())) from error
    except Exception as error:
        raise _again(error, f"In {_place(stage, layer())}: {error}") from error


@contextlib.contextmanager
def in_loss(device: str) -> Iterator[None]:
    """Errors raised by TensorFlow while a loss or a metric is computed say so."""
    try:
        yield
    except tf.errors.OpError as error:
        raise explained(error, f"the loss or a metric, on {device}") from error


@contextlib.contextmanager
def in_step(stages: Sequence[Stage]) -> Iterator[None]:
    """Errors raised by TensorFlow while a traced step runs name the stage they came from."""
    try:
        yield
    except (OutOfMemoryError, tf.errors.OutOfRangeError, tf.errors.CancelledError):
        # It says all by itself; or the data has ended, which Keras expects; or the cause is hidden.
        raise
    except tf.errors.OpError as error:
        index = stage_in(f"{error.message}")
        if index is None or index >= len(stages):
            place = _full_device(error, stages)
            if place is None:
                raise
            raise explained(error, place) from error
        stage = stages[index]
        raise explained(error, _place(stage, _layer_in(error.message, stage))) from error


def hides_its_cause(error: tf.errors.OpError) -> bool:
    """Whether TensorFlow reports what an error led to, and not the error.

    If something fails in one stage, TensorFlow cancels what the others wait for, and reports
    whichever it hears of first. A copy that finds no memory does not say on which device.
    """
    return isinstance(error, tf.errors.CancelledError) or _NO_ROOM_FOR_COPY in error.message


def without_cause(error: tf.errors.OpError) -> tf.errors.OpError:
    """An error whose cause could not be found."""
    return type(error)(
        error.node_def,
        error.op,
        "A stage failed, and TensorFlow reported only that others were cancelled. The same batch "
        "did not fail when it was run again, one op after the other. If memory may be short: "
        f"{OUT_OF_MEMORY_ADVICE}\n{error.message}",
    )


def explained(error: tf.errors.OpError, place: str) -> tf.errors.OpError:
    """The same TensorFlow error with the place in front, and advice if memory ran out."""
    is_memory = isinstance(error, tf.errors.ResourceExhaustedError)
    if not is_memory and _NO_ROOM_FOR_COPY not in error.message:
        return type(error)(error.node_def, error.op, f"In {place}: {error.message}")
    message = f"Out of memory in {place}. {OUT_OF_MEMORY_ADVICE}\n{error.message}"
    return tf.errors.ResourceExhaustedError(error.node_def, error.op, message)


def _full_device(error: tf.errors.OpError, stages: Sequence[Stage]) -> str | None:
    """Where memory ran out outside of all stages: in a loss, a metric or the update of weights."""
    match = re.search(r"device:(\w+:\d+) by allocator", error.message)
    if match is None or not isinstance(error, tf.errors.ResourceExhaustedError):
        return None
    there = [str(stage) for stage in stages if stage.device.endswith(match[1])]
    beside = f", beside {' and '.join(there)}" if there else ""
    return f"the loss, a metric or the update of the weights{beside}"


def _place(stage: Stage, layer: str) -> str:
    return f"{stage}, layer '{layer}'" if layer else str(stage)


def _layer_in(message: str, stage: Stage) -> str:
    """The layer whose scope the first name in a message lies in, or `""`."""
    scope = re.escape(stage_scope(stage.index))
    for name in re.findall(rf"\b{scope}/([\w./-]+)", message):
        parts = [re.sub(r"\._\d+$|\.$", "", part) for part in name.split("/")]
        for call in stage.calls:
            wanted = call.name.split("/")
            if parts[: len(wanted)] == wanted or _without_number(parts, wanted):
                return call.name
    return ""


def _without_number(parts: Sequence[str], wanted: Sequence[str]) -> bool:
    """Whether a scope is a layer's but for the number that TensorFlow appends to scopes."""
    last = len(wanted) - 1
    if len(parts) <= last or list(parts[:last]) != list(wanted[:last]):
        return False
    return re.fullmatch(rf"{re.escape(wanted[last])}_\d+", parts[last]) is not None


def _again(error: Exception, message: str) -> Exception:
    """An error of the same type with another message, where the type allows for it."""
    try:
        return type(error)(message)
    except TypeError:
        return RuntimeError(message)
