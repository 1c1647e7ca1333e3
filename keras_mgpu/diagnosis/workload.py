"""A split transformer to time: large enough that a GPU has something to do."""

from __future__ import annotations

import functools
import statistics
import time
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_mgpu.blueprint.timeline import Costs, StageBytes, Timeline, replay
from keras_mgpu.diagnosis import trial_models
from keras_mgpu.diagnosis.machine import Machine
from keras_mgpu.diagnosis.trial_models import TransformerSize, on_cpu
from keras_mgpu.pipeline.pipeline_split import PipelineSplit
from keras_mgpu.placements.observation import collected_graphs, report_of
from keras_mgpu.placements.report import PlacementReport
from keras_mgpu.profiling.trace_recorder import TraceRecorder
from keras_mgpu.system.devices import describe

FAST = 1e12  # Multiplications and additions per second, which any GPU of today can do.
LONG_ENOUGH = 3e-3  # Seconds of a forward pass, far above what it takes to launch kernels.
MAX_SAMPLES = 256
MEMORY_SHARE = 0.25  # Of a device, for what a batch takes.
NUM_STEPS = 7


class Workload:
    """A split model, its batch, and what was measured of it; each made when first asked for.

    Args:
        machine: The devices to use.
    """

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self._failure: Exception | None = None

    @functools.cached_property
    def split(self) -> PipelineSplit:
        """The model, trained for one step; tried once, because out of memory takes long to tell."""
        if self._failure is not None:
            raise RuntimeError(
                "The model to measure did not train. An earlier check has the error."
            ) from self._failure
        try:
            return self._make_split()
        except Exception as failure:
            self._failure = failure
            raise

    def _make_split(self) -> PipelineSplit:
        num_stages = len(self.machine.stage_devices)
        size = TransformerSize(64, 2, num_stages, 32)
        if self.machine.has_gpus_only and _is_fast(self.machine.devices[0]):
            size = TransformerSize(1024, 16, num_stages, 128)
        num = max(4, 2 * num_stages)
        model = on_cpu(trial_models.transformer, size)
        split = PipelineSplit(model, self.machine.stage_devices, micro_batches=num)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        split.compile(keras.optimizers.Adam(1e-4), loss)
        x, y = trial_models.sentences(num, size.num_tokens)
        split.fit(x, y, batch_size=num, verbose=0)
        return split

    @functools.cached_property
    def num_samples(self) -> int:
        """Samples in a micro-batch: enough to keep a GPU busy, and no more than fit."""
        num = 4
        while self.machine.has_gpus_only and num < MAX_SAMPLES:
            costs, sizes = self.split.measure(num)
            is_long = min(costs.per_stage("F", len(self.split.stages))) >= LONG_ENOUGH
            if is_long or 2 * self._largest_batch(costs, sizes) > self._smallest_memory:
                break
            num *= 2
        return num

    @functools.cached_property
    def batch(self) -> tuple[np.ndarray, np.ndarray]:
        num_tokens = int(self.split.model.input_shape[1])
        return trial_models.sentences(self.num_samples * self.split.micro_batches, num_tokens)

    @functools.cached_property
    def measured(self) -> tuple[Costs, StageBytes]:
        """What a micro-batch takes in each stage, by itself."""
        return self.split.measure(self.num_samples)

    @property
    def predicted(self) -> Timeline:
        """A step that takes what its parts take by themselves."""
        return replay(self.split.schedule, self.measured[0])

    @functools.cached_property
    def step_seconds(self) -> float:
        """How long a step takes."""
        self.train()
        taken = []
        for _ in range(NUM_STEPS):
            begin = time.perf_counter()
            self.train()
            taken.append(time.perf_counter() - begin)
        return statistics.median(taken)

    @functools.cached_property
    def trace(self) -> tuple[Any, float]:
        """What the profiler has recorded of a step, and how long the step took."""
        self.train()
        recorder = TraceRecorder()
        try:
            self.train()
        finally:
            seconds = recorder.stop()
        return recorder.read(), seconds

    @functools.cached_property
    def placement(self) -> PlacementReport:
        """Where the ops of a step ran, and what was sent."""
        self.split.make_train_function()
        function = self.split.train_function
        with collected_graphs(function) as graphs:
            self.train()
        return report_of(self.split, graphs, function, len(self.batch[0]))

    def train(self) -> None:
        """One step, which has ended when its loss is known."""
        self.split.train_on_batch(*self.batch)

    def _largest_batch(self, costs: Costs, sizes: StageBytes) -> float:
        """Bytes that the batch takes on the device where it takes the most."""
        return max(replay(self.split.schedule, costs).peak_memory(sizes))

    @functools.cached_property
    def _smallest_memory(self) -> float:
        """Bytes that a batch may take on any device."""
        memories = [
            each.memory_bytes
            for each in describe()
            if each.name in self.machine.devices and each.memory_bytes is not None
        ]
        return MEMORY_SHARE * min(memories, default=0)


def _is_fast(device: str) -> bool:
    """Whether a device computes fast enough for a large model, going by one matrix product."""
    width = 1024
    with tf.device(device):
        matrix = tf.ones((width, width))
        seconds = []
        for _ in range(3):
            begin = time.perf_counter()
            tf.matmul(matrix, matrix)
            tf.test.experimental.sync_devices()
            seconds.append(time.perf_counter() - begin)
    return 2 * width**3 / min(seconds) > FAST
