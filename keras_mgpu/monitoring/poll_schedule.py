"""When the sources are polled, and what each poll reads."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator

from keras_mgpu.monitoring import clock
from keras_mgpu.monitoring.source import Due

# Drivers keep the samples of two seconds or more, so they are read at least this often.
CATCH_UP_SECONDS = 1.0


def polls(interval: float, wait: Callable[[float], bool]) -> Iterator[Due]:
    """What is due at each poll, at the time of that poll.

    Args:
        interval: Seconds between two polls of what would be lost otherwise.
        wait: Called with the seconds until the next poll; returns whether there is to be one.
    """
    polls_per_interval = math.ceil(interval / CATCH_UP_SECONDS)
    seconds = interval / polls_per_interval
    next_poll = caught_up = clock.now()
    for number in itertools.count(1):
        next_poll = max(next_poll + seconds, clock.now())
        if not wait(next_poll - clock.now()):
            return
        # A poll may take longer than it should, and the next one must not come too late.
        is_time = clock.now() + seconds - caught_up > CATCH_UP_SECONDS
        if is_time:
            caught_up = clock.now()
        yield Due(momentary=number % polls_per_interval == 0, kept=is_time)
