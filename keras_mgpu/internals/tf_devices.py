"""What TensorFlow knows of devices and of other processes, and has no public name for."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from tensorflow.python.client import device_lib
from tensorflow.python.eager import context


def local_devices() -> list[Any]:
    """Every device of this process, with its memory limit and its place on the PCI bus."""
    return list(device_lib.list_local_devices())


def has_started() -> bool:
    """Whether TensorFlow has started its devices, after which their settings cannot be changed."""
    return context.context()._context_handle is not None


def is_unreachable(task: str, timeout_seconds: int = 3) -> bool:
    """Whether the process of a task does not answer, as far as TensorFlow can tell.

    Args:
        task: Such as `"/job:worker/replica:0/task:1"`.
        timeout_seconds: How long to wait for an answer.
    """
    try:
        context.context().check_collective_ops_peer_health(
            task, timeout_in_ms=1000 * timeout_seconds
        )
    except tf.errors.UnavailableError:
        return True
    except (tf.errors.OpError, RuntimeError, ValueError):
        return False  # It is busy, or there is no cluster to ask in.
    return False
