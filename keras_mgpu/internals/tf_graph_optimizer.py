"""Keeps TensorFlow's graph optimizer to where it pays: inside the stages.

A step with many micro-batches is a large graph of calls, in which there is nothing to optimize, but
which takes the optimizer longer the more micro-batches there are. The stages' functions, made once
and called many times, are where its work is worth it. TensorFlow notes with each call whether the
function it calls should be optimized; both cases are set through the public options.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import tensorflow as tf

OPTION = "disable_meta_optimizer"


class OptimizeStagesOnly:
    """Two scopes: around the call of a step, and around the calls of stages inside it."""

    def __init__(self) -> None:
        self._users_choice: bool | None = None

    @contextlib.contextmanager
    def around_step(self) -> Iterator[None]:
        """The function that is called here is not optimized."""
        self._users_choice = _is_disabled()
        try:
            with _disabled(True):
                yield
        finally:
            self._users_choice = None

    @contextlib.contextmanager
    def inside_step(self) -> Iterator[None]:
        """Functions that are called here are optimized, unless the user has said otherwise."""
        if self._users_choice is None:
            yield
            return
        with _disabled(self._users_choice):
            yield


def _is_disabled() -> bool:
    return bool(tf.config.optimizer.get_experimental_options().get(OPTION))


@contextlib.contextmanager
def _disabled(value: bool) -> Iterator[None]:
    before = _is_disabled()
    tf.config.optimizer.set_experimental_options({OPTION: value})
    try:
        yield
    finally:
        tf.config.optimizer.set_experimental_options({OPTION: before})
