"""A profiled step on its way to TensorBoard: numbers, and a picture."""

from __future__ import annotations

import io
import logging
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from keras_mgpu.monitoring import clock
from keras_mgpu.monitoring.monitor import Monitor
from keras_mgpu.monitoring.rows import HOST
from keras_mgpu.profiling.measured_timeline import UNSEEN, MeasuredStep, MissedOpsError, fold
from keras_mgpu.profiling.picture import draw
from keras_mgpu.profiling.profile import Profile, device_shares, seconds_for_input

logger = logging.getLogger("keras_mgpu")
RUN = "pipeline"


def log_profile(
    monitor: Monitor,
    profile: Profile,
    seconds: float,
    step: int,
    schedule: Any,
    runs: Sequence[str],
) -> bool:
    """Reads what the profiler saw, and writes it; in the monitor's thread.

    Args:
        monitor: Whose files to write to.
        profile: The profiler's work, stopped.
        seconds: How long the step took.
        step: Which one it was.
        schedule: The schedule of a pipeline, or `None`.
        runs: The name of each lane's device in the logs.

    Returns:
        Whether another step would show no more than this one did.
    """
    space = profile.read()
    if space is None:
        logger.info("No timeline of step %d: another profiler was running.", step)
        return True
    now = clock.now()
    share = {"profile/input": seconds_for_input(space) / seconds}
    monitor.write(HOST, share, step, now)
    for device, gpu in device_shares(space, seconds).items():
        shares = {
            "profile/busy": gpu.busy,
            "profile/idle": max(0.0, 1 - gpu.busy),
            "profile/all_reduce": gpu.all_reduce,
        }
        monitor.write(device, shares, step, now)
    if schedule is None:
        return True
    try:
        measured = fold(space, schedule, seconds)
    except MissedOpsError as error:
        logger.info("No timeline of step %d, but of a later one: %s", step, error)
        return False
    if measured is None:
        logger.info("No timeline of step %d: %s", step, UNSEEN)
        return True
    monitor.write(RUN, measured.scalars(), step, now)
    monitor.write_summary(RUN, _picture(measured), step)
    for run, busy in zip(runs, measured.busy):
        monitor.write(run, {"pipeline/busy": busy}, step, now)
    return True


def _picture(measured: MeasuredStep) -> Any:
    """Predicted above measured, in the same scale."""
    titles = [
        (f"predicted from these costs: bubble {measured.predicted.bubble:.0%}", measured.predicted),
        (f"measured: bubble {measured.timeline.bubble:.0%}", measured.timeline),
    ]
    picture, content = draw(titles), io.BytesIO()
    picture.save(content, "PNG")
    image = tf.compat.v1.Summary.Image(
        width=picture.width,
        height=picture.height,
        colorspace=3,
        encoded_image_string=content.getvalue(),
    )
    return tf.compat.v1.Summary(
        value=[tf.compat.v1.Summary.Value(tag="pipeline/timeline", image=image)]
    )
