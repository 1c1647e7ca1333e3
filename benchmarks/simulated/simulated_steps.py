"""Steps on simulated GPUs, read from the simulator's own records of kernels and copies."""

from __future__ import annotations

import bisect
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import simgpu

from keras_mgpu.blueprint.schedule import Schedule, piece_in
from keras_mgpu.blueprint.timeline import Costs


@dataclass(frozen=True)
class Step:
    """What one step took, in seconds of the simulated clock if not said otherwise.

    Attributes:
        seconds: From the call to the end of the last kernel.
        wall: From the call to its return, by the wall clock.
        in_schedule: From the first kernel of a stage to the last.
        late_launches: For each op that began when it was launched, the time since its last input
            had arrived on the device: what the host took to notice and to launch.
        cpu: What the host's cores have worked.
        busy: What kernels of each kind of op took in each stage, together.
    """

    seconds: float
    wall: float
    in_schedule: float
    late_launches: tuple[float, ...]
    cpu: float
    busy: Mapping[tuple[str, int], float]

    def costs(self, schedule: Schedule, transfer: float = 0.0) -> Costs:
        """What an op takes by itself, with copies between devices that take `transfer`."""
        stages = range(schedule.num_stages)
        forward, backward, weight = (
            [self.busy[kind, stage] / schedule.num_micro_batches for stage in stages]
            for kind in "FBW"
        )
        return Costs(forward, backward, weight, transfer=transfer)


def run_step(call: Callable[[], Any]) -> Step:
    """Runs a step, given a function that returns when it has ended."""
    simgpu.reset()
    began, cpu = time.monotonic(), time.process_time()
    call()
    wall, cpu = time.monotonic() - began, time.process_time() - cpu
    kernels, copies = simgpu.kernels(), simgpu.copies()
    of_stages = [kernel for kernel in kernels if piece_in(kernel.name)]
    return Step(
        seconds=max(kernel.end for kernel in kernels) - began,
        wall=wall,
        in_schedule=max(k.end for k in of_stages) - min(k.begin for k in of_stages),
        late_launches=tuple(_late_launches(of_stages, copies)),
        cpu=cpu,
        busy=_busy(of_stages),
    )


def median_step(call: Callable[[], Any], num_steps: int) -> Step:
    """The one of several steps that took the median."""
    steps = sorted((run_step(call) for _ in range(num_steps)), key=lambda step: step.seconds)
    return steps[(len(steps) - 1) // 2]


def late_launch(step: Step) -> float:
    """The median of late launches, or 0 without any."""
    return statistics.median(step.late_launches or (0.0,))


def _busy(kernels: list[Any]) -> Mapping[tuple[str, int], float]:
    busy: dict[tuple[str, int], float] = defaultdict(float)
    for kernel in kernels:
        busy[piece_in(kernel.name)] += kernel.end - kernel.begin
    return busy


def _late_launches(kernels: list[Any], copies: list[Any]) -> list[float]:
    arrivals = defaultdict(list)
    for copy in copies:
        if copy.target is not None and copy.source != copy.target:
            arrivals[copy.target].append(copy.end)
    for times in arrivals.values():
        times.sort()
    late, before = [], {}
    for kernel in kernels:
        piece, end = before.get(kernel.device, (None, 0.0))
        before[kernel.device] = piece_in(kernel.name), kernel.end
        if piece == piece_in(kernel.name) or kernel.begin > kernel.enqueued:
            continue  # Within an op, or behind the op before it.
        times = arrivals[kernel.device]
        place = bisect.bisect_right(times, kernel.enqueued)
        if place and times[place - 1] > end:
            late.append(kernel.enqueued - times[place - 1])
    return late
