"""Check: a model trained split over the devices comes out like the same model unsplit on the CPU.

Two questions, because two things can go wrong:

- Does splitting change the numbers? One step, split and unsplit, on the same devices. Both use the
  same kernels, so that only the order of sums differs.
- Do the devices compute what the CPU computes? Some steps on the devices, and the same on the CPU.
  Here kernels differ as well, and with TF32 the GPU keeps three digits of what it multiplies. So
  this is tried without TF32, and once more with it for who wants to know.

SGD with momentum is used: its update is linear in the gradients, so that differences stay as small
as they are. Adam would turn the rounding of a gradient near zero into a whole step.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_mgpu.diagnosis import trial_models
from keras_mgpu.diagnosis.machine import Machine
from keras_mgpu.diagnosis.report import FAILED, OK, WARNING, Finding, worst
from keras_mgpu.diagnosis.trial_models import TransformerSize, on_cpu
from keras_mgpu.pipeline.pipeline_split import PipelineSplit

NUM_STEPS, BATCH_SIZE, NUM_TOKENS = 5, 16, 12
LEARNING_RATE = 0.125  # A power of two, by which nothing is rounded.


@dataclass(frozen=True)
class Tolerance:
    """Which relative differences are fine, and which are at least worth a warning.

    Args:
        fine: Up to here, they are what rounding makes.
        wrong: Beyond this, something else makes them.
    """

    fine: float
    wrong: float

    def judge(self, difference: float) -> str:
        if not np.isfinite(difference) or difference > self.wrong:
            return FAILED
        return OK if difference <= self.fine else WARNING


FLOAT32, TF32 = Tolerance(1e-4, 1e-2), Tolerance(1e-2, 1e-1)


@dataclass(frozen=True)
class Trained:
    """What training has led to.

    Args:
        losses: After each step, the mean of all losses so far, as Keras reports it.
        gradients: Those of the first step, by the paths of weights.
        weights: Those after the last step, by their paths.
    """

    losses: np.ndarray
    gradients: dict[str, np.ndarray]
    weights: dict[str, np.ndarray]


def check_transformer(machine: Machine) -> Finding:
    """Masks, attention, and a table that the first and the last stage share."""
    size = TransformerSize(32, 2, max(2, len(machine.stage_devices)), NUM_TOKENS)
    data = trial_models.sentences(NUM_STEPS * BATCH_SIZE, NUM_TOKENS)
    return _check(machine, [on_cpu(trial_models.transformer, size) for _ in range(2)], *data)


def check_convolution(machine: Machine) -> Finding:
    """Convolutions, normalization by groups, and pooling."""
    num_blocks = max(2, len(machine.stage_devices))
    data = trial_models.images(NUM_STEPS * BATCH_SIZE)
    return _check(machine, [on_cpu(trial_models.convolution, num_blocks) for _ in range(2)], *data)


def _check(machine: Machine, models: Sequence[keras.Model], x: Any, y: Any) -> Finding:
    model, plain = models
    start = plain.get_weights()
    split = PipelineSplit(model, machine.stage_devices, micro_batches=4)
    with _tf32(False):
        with tf.device("/CPU:0"):
            expected = _train(plain, plain, start, x, y)
        found = _train(split, model, start, x, y)
        model.set_weights(start)
        verified = split.verify(x[:BATCH_SIZE], y[:BATCH_SIZE]).max_relative
    findings = [
        _judged("split against unsplit, same devices", {"gradients": verified}, FLOAT32),
        _judged("against the CPU, float32", _differences(found, expected), FLOAT32),
    ]
    if machine.has_gpus_only and tf.config.experimental.tensor_float_32_execution_enabled():
        differences = _differences(_train(split, model, start, x, y), expected)
        findings.append(_judged("against the CPU, TF32 where it is used", differences, TF32))
    return Finding(
        worst(each.status for each in findings),
        tuple(line for each in findings for line in each.lines),
        {title: data for each in findings for title, data in each.data.items()},
    )


def _train(trainer: Any, model: keras.Model, start: Any, x: Any, y: Any) -> Trained:
    """Trains from the given weights; `trainer` is the model itself, or what it is split by."""
    model.set_weights(start)
    optimizer = keras.optimizers.SGD(LEARNING_RATE, momentum=0.5)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    trainer.compile(optimizer, loss, jit_compile=False)
    losses, gradients = [], {}
    for step in range(NUM_STEPS):
        batch = slice(step * BATCH_SIZE, (step + 1) * BATCH_SIZE)
        losses.append(float(trainer.train_on_batch(x[batch], y[batch])))
        if step == 0:  # The momentum starts at zero, so it is the gradient now, times the rate.
            pairs = zip(model.trainable_weights, optimizer.momentums)
            gradients = {w.path: -np.asarray(m) / LEARNING_RATE for w, m in pairs}
    weights = {weight.path: np.asarray(weight) for weight in model.weights}
    return Trained(np.asarray(losses), gradients, weights)


def _differences(found: Trained, expected: Trained) -> dict[str, float]:
    return {
        "loss": _largest({"": found.losses}, {"": expected.losses}),
        "gradients": _largest(found.gradients, expected.gradients),
        "weights": _largest(found.weights, expected.weights),
    }


def _largest(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> float:
    """The largest difference, as a part of the largest number of the array it is in.

    An array of numbers far smaller than all others is held against those: it may be rounding only.
    """
    overall = max(float(np.max(np.abs(array))) for array in expected.values())
    ratios = []
    for one, other in zip(found.values(), expected.values()):
        scale = max(float(np.max(np.abs(other))), 0.01 * overall)
        ratios.append(float(np.max(np.abs(one - other))) / scale if scale else 0.0)
    return float(np.max(ratios))


def _judged(title: str, differences: dict[str, float], tolerance: Tolerance) -> Finding:
    status = worst(tolerance.judge(each) for each in differences.values())
    words = ", ".join(f"{name} {each:.1e}" for name, each in differences.items())
    verdict = {
        OK: "",
        WARNING: f": more than rounding makes ({tolerance.fine:.0e})",
        FAILED: f": wrong, at most {tolerance.wrong:.0e} can be explained",
    }
    line = f"{title}: {words}{verdict[status]}"
    data = {**differences, "fine": tolerance.fine, "wrong": tolerance.wrong, "status": status}
    return Finding(status, (line,), {title: data})


@contextlib.contextmanager
def _tf32(is_on: bool) -> Iterator[None]:
    config = tf.config.experimental
    before = config.tensor_float_32_execution_enabled()
    config.enable_tensor_float_32_execution(is_on)
    try:
        yield
    finally:
        config.enable_tensor_float_32_execution(before)
