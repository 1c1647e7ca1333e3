"""Writes a profiled step for TensorBoard: numbers, and a picture of the timeline."""

from __future__ import annotations

import io
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from keras_mgpu.blueprint.schedule import Schedule
from keras_mgpu.model.split_model import is_split
from keras_mgpu.monitoring import clock
from keras_mgpu.monitoring.run_files import RunFiles
from keras_mgpu.monitoring.run_names import HOST_RUN, PIPELINE_RUN, device_run, gpu_run
from keras_mgpu.profiling.measured_timeline import NO_STAGES, MeasuredStep, MissedOpsError
from keras_mgpu.profiling.short_stages import warn_of_short_stages
from keras_mgpu.profiling.timeline_picture import draw_timelines
from keras_mgpu.profiling.trace import device_shares, seconds_for_input

logger = logging.getLogger("keras_mgpu")


@dataclass(frozen=True)
class PipelineLanes:
    """The lanes of a pipeline.

    Args:
        schedule: The schedule that it follows.
        runs: The run of each lane's device.
        devices: The device of each stage.
    """

    schedule: Schedule
    runs: Sequence[str]
    devices: Sequence[str]


def lanes_of(model: Any) -> PipelineLanes | None:
    """The lanes of a `PipelineSplit`; `None` for any other model."""
    if not is_split(model):
        return None
    devices = [model.stages[ops[0].stage].device for ops in model.schedule.lanes]
    runs = [device_run(device) for device in devices]
    return PipelineLanes(model.schedule, runs, model.devices)


def log_trace(
    files: RunFiles, trace: Any, step: int, seconds: float, lanes: PipelineLanes | None
) -> bool:
    """Writes what a trace says about a step.

    Args:
        files: Where to write.
        trace: What the profiler has recorded, or `None` if another profiler was running.
        step: The number of the step.
        seconds: How long it took.
        lanes: The lanes of a pipeline, or `None`.

    Returns:
        Whether that is complete. If not, another step is worth trying.
    """
    if trace is None:
        logger.info("No timeline of step %d: another profiler was running.", step)
        return True
    _log_shares(files, trace, step, seconds)
    if lanes is None:
        return True
    try:
        measured = MeasuredStep.from_trace(trace, lanes.schedule, seconds)
    except MissedOpsError as error:
        logger.info("No timeline of step %d, a later step is profiled instead: %s", step, error)
        return False
    if measured is None:
        logger.info("No timeline of step %d: %s.", step, NO_STAGES)
    else:
        _log_timeline(files, measured, step, lanes)
        warn_of_short_stages(measured.costs, lanes.devices)
    return True


def _log_shares(files: RunFiles, trace: Any, step: int, seconds: float) -> None:
    """How the host and each GPU spent the step."""
    now = clock.now()
    files.write(HOST_RUN, {"profile/input": seconds_for_input(trace) / seconds}, step, now)
    for index, gpu in device_shares(trace, seconds).items():
        shares = {
            "profile/busy": gpu.busy,
            "profile/idle": max(0.0, 1 - gpu.busy),
            "profile/all_reduce": gpu.all_reduce,
        }
        files.write(gpu_run(index), shares, step, now)


def _log_timeline(files: RunFiles, measured: MeasuredStep, step: int, lanes: PipelineLanes) -> None:
    now = clock.now()
    files.write(PIPELINE_RUN, measured.scalars(), step, now)
    files.write_summary(PIPELINE_RUN, _picture(measured), step)
    for run, busy in zip(lanes.runs, measured.busy):
        files.write(run, {"pipeline/busy": busy}, step, now)


def _picture(measured: MeasuredStep) -> Any:
    """The predicted timeline above the measured one, to the same scale."""
    predicted, timeline = measured.predicted, measured.timeline
    titles = [
        (f"predicted from these costs: bubble {predicted.bubble:.0%}", predicted),
        (f"measured: bubble {timeline.bubble:.0%}", timeline),
    ]
    picture, content = draw_timelines(titles), io.BytesIO()
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
