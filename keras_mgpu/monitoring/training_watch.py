"""Whether training still runs. Keras does not notify callbacks when `fit` fails."""

from __future__ import annotations

import sys
import threading
import types
from collections.abc import Callable

from keras_mgpu.internals.keras_training import TrainingCall

_CHECKS = 5


def watch(call: TrainingCall) -> Callable[[], bool]:
    """Returns a function that returns whether the `fit` of this call still runs.

    A custom loop cannot be watched: it may call its callbacks from anywhere.
    """
    frame = call.frame
    if call.epoch_iterator is None or frame is None:
        return lambda: True
    thread_id = threading.get_ident()
    return lambda: runs_in(thread_id, frame)


def runs_in(thread_id: int, frame: types.FrameType) -> bool:
    """Whether a thread is still inside a call, such as that of `fit`.

    The thread runs on while its frames are read, and the frame of a generator that it has just
    left has no caller any more. So the call has ended only if several checks agree.
    """
    return any(_is_inside(thread_id, frame) for _ in range(_CHECKS))


def _is_inside(thread_id: int, call: types.FrameType) -> bool:
    frame = sys._current_frames().get(thread_id)
    while frame is not None:
        if frame is call:
            return True
        frame = frame.f_back
    return False
