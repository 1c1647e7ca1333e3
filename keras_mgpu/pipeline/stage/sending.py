"""Has what a stage gives leave its device before the device is given more to do.

A copy from a GPU waits for all kernels that the GPU has been given until then. The next op of the
schedule is given to it at the same moment as the copy is asked for, by another thread. If that one
wins, other devices wait for an op that they do not need.
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from keras_mgpu.pipeline.stage.piece_function import Waitable


def sent_first(
    results: Sequence[tf.Tensor], done: tf.Tensor
) -> tuple[list[tf.Tensor], list[Waitable]]:
    """Makes what waits for a call also wait until its results are on their way.

    When a call ends, TensorFlow gives each op that can run now to another thread. When an op of
    the kind below ends, its thread goes on with those that can run now, in their order. So one
    thread has all results sent, an edge away from here, before it comes to what is two edges away.

    Args:
        results: What the call returned.
        done: What others can wait for until now.

    Returns:
        The results to use instead, and what to wait for from now on.
    """
    if tf.executing_eagerly() or not any(_can_pass(result) for result in results):
        return list(results), [done]
    with tf.control_dependencies([done]):
        begin = tf.no_op("begin_sending")
    with tf.control_dependencies([begin]):
        passed = [tf.identity(each) if _can_pass(each) else each for each in results]
    with tf.control_dependencies([each for each in passed if _can_pass(each)]):
        return passed, [tf.no_op("sent")]


def _can_pass(tensor: tf.Tensor) -> bool:
    """Whether an op that changes nothing leaves it where it is: integers would go to the host."""
    return bool(tensor.dtype.is_floating or tensor.dtype.is_complex)
