"""Keras models over several GPUs.

Names are loaded when they are first used: importing the package imports no TensorFlow.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from keras_mgpu.version import __version__

if TYPE_CHECKING:
    from keras_mgpu.devices import logical_devices
    from keras_mgpu.partition import PartitionPlan
    from keras_mgpu.pipeline_split import PipelineSplit
    from keras_mgpu.planning import plan
    from keras_mgpu.schedule import Schedule
    from keras_mgpu.timeline import Timeline, replay
    from keras_mgpu.verify import VerifyReport

__all__ = [
    "PartitionPlan",
    "PipelineSplit",
    "Schedule",
    "Timeline",
    "VerifyReport",
    "__version__",
    "logical_devices",
    "plan",
    "replay",
]

_HOMES = {
    "PartitionPlan": "partition",
    "PipelineSplit": "pipeline_split",
    "Schedule": "schedule",
    "Timeline": "timeline",
    "VerifyReport": "verify",
    "logical_devices": "devices",
    "plan": "planning",
    "replay": "timeline",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
