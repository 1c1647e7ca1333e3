"""Trains Keras models on several GPUs.

Public names are loaded on first use, so that importing the package does not import TensorFlow.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from keras_mgpu.version import __version__

if TYPE_CHECKING:
    from keras_mgpu.blueprint.partition import PartitionPlan
    from keras_mgpu.blueprint.schedule import Schedule
    from keras_mgpu.blueprint.timeline import Timeline, replay
    from keras_mgpu.callbacks.device_placement_logger import DevicePlacementLogger
    from keras_mgpu.callbacks.distributed_checkpoint import DistributedCheckpoint
    from keras_mgpu.callbacks.gpu_metrics import GPUMetrics
    from keras_mgpu.checkpoints.custom_loops import (
        latest_checkpoint,
        restore_checkpoint,
        save_checkpoint,
    )
    from keras_mgpu.checkpoints.resumable import resumable
    from keras_mgpu.pipeline.pipeline_split import PipelineSplit
    from keras_mgpu.pipeline.planning import plan
    from keras_mgpu.pipeline.verify import VerifyReport
    from keras_mgpu.placements.assertion import assert_placement
    from keras_mgpu.placements.inspection import placement
    from keras_mgpu.placements.report import PlacementReport
    from keras_mgpu.system.devices import logical_devices, pick_devices
    from keras_mgpu.system.gpu_setup import prepare_gpus
    from keras_mgpu.system.multi_worker_fit import enable_multi_worker_fit

__all__ = [
    "DevicePlacementLogger",
    "DistributedCheckpoint",
    "GPUMetrics",
    "PartitionPlan",
    "PipelineSplit",
    "PlacementReport",
    "Schedule",
    "Timeline",
    "VerifyReport",
    "__version__",
    "assert_placement",
    "enable_multi_worker_fit",
    "latest_checkpoint",
    "logical_devices",
    "pick_devices",
    "placement",
    "plan",
    "prepare_gpus",
    "replay",
    "restore_checkpoint",
    "resumable",
    "save_checkpoint",
]

_HOMES = {
    "DevicePlacementLogger": "callbacks.device_placement_logger",
    "DistributedCheckpoint": "callbacks.distributed_checkpoint",
    "GPUMetrics": "callbacks.gpu_metrics",
    "PartitionPlan": "blueprint.partition",
    "PipelineSplit": "pipeline.pipeline_split",
    "PlacementReport": "placements.report",
    "Schedule": "blueprint.schedule",
    "Timeline": "blueprint.timeline",
    "VerifyReport": "pipeline.verify",
    "assert_placement": "placements.assertion",
    "enable_multi_worker_fit": "system.multi_worker_fit",
    "latest_checkpoint": "checkpoints.custom_loops",
    "logical_devices": "system.devices",
    "pick_devices": "system.devices",
    "placement": "placements.inspection",
    "plan": "pipeline.planning",
    "prepare_gpus": "system.gpu_setup",
    "replay": "blueprint.timeline",
    "restore_checkpoint": "checkpoints.custom_loops",
    "resumable": "checkpoints.resumable",
    "save_checkpoint": "checkpoints.custom_loops",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
