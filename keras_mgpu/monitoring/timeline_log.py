"""A profiled step on its way to TensorBoard: numbers, and a picture."""

from __future__ import annotations

import io
import logging
import time
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from keras_mgpu.monitoring.measured_timeline import MeasuredStep, Profile, device_shares, fold
from keras_mgpu.monitoring.monitor import Monitor
from keras_mgpu.monitoring.picture import draw

logger = logging.getLogger("keras_mgpu")
RUN = "pipeline"


def log_profile(
    monitor: Monitor,
    profile: Profile,
    seconds: float,
    step: int,
    schedule: Any,
    runs: Sequence[str],
) -> None:
    """Reads what the profiler saw, and writes it; in the monitor's thread.

    Args:
        monitor: Whose files to write to.
        profile: The profiler's work, stopped.
        seconds: How long the step took.
        step: Which one it was.
        schedule: The schedule of a pipeline, or `None`.
        runs: The name of each lane's device in the logs.
    """
    space = profile.read()
    if space is None:
        logger.info("No timeline of step %d: another profiler was running.", step)
        return
    for device, shares in device_shares(space, seconds).items():
        values = {
            "profile/busy": shares.busy,
            "profile/idle": max(0.0, 1 - shares.busy),
            "profile/all_reduce": shares.all_reduce,
        }
        monitor.file(device).scalars(values, step, time.time())
    measured = None if schedule is None else fold(space, schedule, seconds)
    if measured is not None:
        _log_pipeline(monitor, measured, step, runs)


def _log_pipeline(monitor: Monitor, measured: MeasuredStep, step: int, runs: Sequence[str]) -> None:
    file = monitor.file(RUN)
    file.scalars(measured.scalars(), step, time.time())
    file.summary(_picture(measured), step)
    for run, busy in zip(runs, measured.busy):
        monitor.file(run).scalars({"pipeline/busy": busy}, step, time.time())


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
