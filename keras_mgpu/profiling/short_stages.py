"""Stages that are too short for a GPU: launching their kernels takes longer than running them.

A warning is logged wherever stages are timed anyway, so that no step is slowed down for it.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Sequence

from keras_mgpu.blueprint.timeline import Costs
from keras_mgpu.system.devices import kind_of
from keras_mgpu.system.terminal import fold_names

# TensorFlow takes a few microseconds to launch a kernel, and a layer has a handful of them.
SHORT_SECONDS = 1e-3

logger = logging.getLogger("keras_mgpu")


def short_stages(costs: Costs, devices: Sequence[str]) -> list[int]:
    """The stages on GPUs whose forward pass takes less than a millisecond per micro-batch.

    Args:
        costs: How long ops took, in seconds.
        devices: One per stage.
    """
    seconds = costs.per_stage("F", len(devices))
    return [
        stage
        for stage, device in enumerate(devices)
        if kind_of(device) == "GPU" and seconds[stage] < SHORT_SECONDS
    ]


def advice(stages: Sequence[int]) -> str:
    """What to tell about short stages."""
    names = fold_names([str(stage) for stage in stages], "stages")
    return (
        f"The forward pass of a micro-batch takes less than a millisecond in stage {names}. "
        "Launching the kernels of a few layers takes about as long, so the GPU mostly waits for "
        "the host. Use fewer micro-batches, larger batches, or fewer devices."
    )


def warn_of_short_stages(costs: Costs, devices: Sequence[str]) -> None:
    """Logs a warning about short stages, once per process for the same stages."""
    stages = short_stages(costs, devices)
    if stages:
        _log_once(advice(stages))


@functools.cache
def _log_once(text: str) -> None:
    logger.warning(text)
