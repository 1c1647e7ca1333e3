"""How long kernels and copies take on a simulated GPU.

A kernel takes as long as its multiplications or its memory traffic, whichever is more, plus a time
for every launch. A copy takes the latency of its link, plus its bytes at the link's bandwidth.
Nothing here was measured: the numbers are those of data sheets, and a guess at what share of them
programs get.
"""

import ctypes
import os
from dataclasses import asdict, dataclass, fields, replace

GIGA, TERA, MICRO = 1e9, 1e12, 1e-6


@dataclass(frozen=True)
class Cost:
    """Rates per second and times in seconds. A rate of 0 is no limit, so `Cost()` takes no time.

    Attributes:
        flops: Floating point operations per second, where values have 32 bits or more.
        half_flops: The same where they have 16 bits.
        memory_bandwidth: Bytes per second that kernels read and write.
        launch: Time for each kernel, beside its work.
        host_bandwidth: Bytes per second between a device and the host, in each direction.
        host_latency: Time for each copy between them, beside its bytes.
        peer_bandwidth: Bytes per second from a device to another.
        peer_latency: Time for each copy between them, beside its bytes.
        time_scale: Factor for all times. The kernels of a small model then take as long as those
            of a large one, and the host's own work does not count.
    """

    flops: float = 0.0
    half_flops: float = 0.0
    memory_bandwidth: float = 0.0
    launch: float = 0.0
    host_bandwidth: float = 0.0
    host_latency: float = 0.0
    peer_bandwidth: float = 0.0
    peer_latency: float = 0.0
    time_scale: float = 1.0


def _gpu(teraflops, half_teraflops, memory_terabytes, host_gigabytes, peer_gigabytes):
    """A GPU by its data sheet: half of its arithmetic, 80 % of its memory and its links."""
    return Cost(
        flops=0.5 * teraflops * TERA,
        half_flops=0.5 * half_teraflops * TERA,
        memory_bandwidth=0.8 * memory_terabytes * TERA,
        launch=3 * MICRO,
        host_bandwidth=0.8 * host_gigabytes * GIGA,
        host_latency=10 * MICRO,
        peer_bandwidth=0.8 * peer_gigabytes * GIGA,
        peer_latency=10 * MICRO,
    )


# 32 bits mean TF32 where a GPU has it, as in TensorFlow. Peers are connected by NVLink, one
# direction, or by PCIe.
GPUS = {
    "H100": _gpu(495, 990, 3.35, 64, 450),
    "A100": _gpu(156, 312, 2.0, 32, 300),
    "V100": _gpu(15.7, 125, 0.9, 16, 150),
    "T4": _gpu(8.1, 65, 0.32, 16, 16),
}


def cost_of(gpu=None, **numbers):
    """The cost of a GPU of the table, or no cost, with some of its numbers replaced."""
    if gpu is not None and gpu not in GPUS:
        raise ValueError(f"`gpu` must be one of {', '.join(GPUS)}. Received: gpu={gpu!r}")
    return replace(GPUS[gpu] if gpu else Cost(), **numbers)


def from_environment():
    """What `SIMGPU_GPU` asks for, and a variable for each number, such as `SIMGPU_TIME_SCALE`."""
    names = {field.name: f"SIMGPU_{field.name.upper()}" for field in fields(Cost)}
    numbers = {name: float(os.environ[key]) for name, key in names.items() if key in os.environ}
    return cost_of(os.environ.get("SIMGPU_GPU"), **numbers)


def as_struct(cost):
    """The plug-in's struct of the same layout."""
    numbers = asdict(cost).values()
    return (ctypes.c_double * len(numbers))(*numbers)
