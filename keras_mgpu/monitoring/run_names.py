"""Names of the runs in TensorBoard: one per device, so that it overlays the devices of a chart."""

from __future__ import annotations

HOST_RUN = "host"
PIPELINE_RUN = "pipeline"


def gpu_run(index: int) -> str:
    """The run of a GPU, in TensorFlow's order of the GPUs of this process."""
    return f"gpu_{index}"


def device_run(device: str) -> str:
    """The run of a device: `gpu_0` for `/GPU:0`."""
    return device.strip("/").lower().replace(":", "_")


def worker_prefix(name: str) -> str:
    """What the runs of a worker begin with: `worker_1_` for `worker:1`."""
    return f"{name.replace(':', '_')}_"
