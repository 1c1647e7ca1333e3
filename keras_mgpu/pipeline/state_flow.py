"""What becomes of the state that layers keep, when a batch goes through in micro-batches.

Three kinds of state, three rules:

- **Seeds.** Micro-batch 0 draws as plain Keras would; micro-batch i draws from a stream of its own
  that depends on the seed and on i alone. So dropout does not depend on schedule, stages or
  devices, and behind the batch the seed stands where plain Keras would leave it.
- **Statistics of batch normalization**, unless they shall move once a micro-batch. Every
  micro-batch starts from the statistics before the batch; at the end they move once, by the mean
  and variance of all its samples together.
- **All other state** passes from micro-batch to micro-batch, as it would from batch to batch.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Any

import keras
import tensorflow as tf

from keras_mgpu.internals.keras_variables import own_non_trainable, own_state
from keras_mgpu.model.stages import Stage
from keras_mgpu.pipeline.micro_batches import Sizes
from keras_mgpu.pipeline.stage.stage_function import StageOutputs

# Apart enough that no two micro-batches share a stream; odd, so that none repeats.
SEED_STRIDE = 0x9E3779B1


class StateFlow:
    """Hands out the state each run of a stage starts from, and takes what it left.

    Args:
        stages: The stages of the model.
        sizes: How many samples each micro-batch has.
        batch_norm: `"deferred"` or `"micro_batch"`.
    """

    def __init__(self, stages: Iterable[Stage], sizes: Sizes, batch_norm: str) -> None:
        self._sizes = sizes
        self._norms = _norm_of(stages) if batch_norm == "deferred" else {}
        self._before: dict[int, tf.Tensor] = {}
        self._after: dict[tuple[int, int], tf.Tensor] = {}
        self._valid: dict[tuple[int, int], tf.Tensor] = {}
        self._writers: dict[int, tuple[keras.Variable, Stage]] = {}

    def read(self, variable: keras.Variable, micro_batch: int) -> tf.Tensor:
        """The value a stage shall see in this micro-batch."""
        key = id(variable)
        if (key, micro_batch) in self._after:  # A stage before has been at it.
            return self._after[key, micro_batch]
        if _is_seed(variable):
            return self._initial(variable) + tf.constant(
                [micro_batch * SEED_STRIDE, 0], dtype=variable.dtype
            )
        if key in self._norms or micro_batch == 0:
            return self._initial(variable)
        return self._after.get((key, micro_batch - 1), self._initial(variable))

    def write(self, stage: Stage, micro_batch: int, outputs: StageOutputs) -> None:
        """Takes what a run of a stage assigned."""
        for variable, value in outputs.state:
            key = id(variable)
            _, writer = self._writers.setdefault(key, (variable, stage))
            if self._is_passed_on(variable):
                _check_one_stage(variable, writer, stage)
                self._warn_once(variable, stage)
                before = self.read(variable, micro_batch)
                value = tf.where(self._sizes.counts[micro_batch] > 0, value, before)
            self._after[key, micro_batch] = value
        for norm, valid in outputs.valid.items():
            self._valid[norm, micro_batch] = valid * self._sizes.is_used(micro_batch)

    def assign(self) -> None:
        """Puts what the whole batch left into the variables, each on its own device."""
        for variable, _ in self._writers.values():
            with tf.device(variable.value.device):
                variable.assign(self._final(variable))

    def _initial(self, variable: keras.Variable) -> tf.Tensor:
        if id(variable) not in self._before:
            with tf.device(variable.value.device):
                self._before[id(variable)] = tf.identity(tf.convert_to_tensor(variable.value))
        return self._before[id(variable)]

    def _warn_once(self, variable: keras.Variable, stage: Stage) -> None:
        """State that layers keep beside metrics moves with each micro-batch: worth knowing."""
        kept = {id(v) for layer in stage.sublayers for v in own_non_trainable(layer)}
        is_first = (id(variable), 0) not in self._after
        if is_first and self._sizes.num_micro_batches > 1 and id(variable) in kept:
            warnings.warn(
                f"The layer state '{variable.path}' moves with every micro-batch, not once a batch "
                "as in plain Keras. `micro_batches=1` moves it as plain Keras does.",
                stacklevel=2,
            )

    def _is_passed_on(self, variable: keras.Variable) -> bool:
        return not (_is_seed(variable) or variable.trainable or id(variable) in self._norms)

    def _final(self, variable: keras.Variable) -> tf.Tensor:
        key = id(variable)
        last = self._sizes.num_micro_batches - 1
        if self._is_passed_on(variable):
            return self._after[key, last]
        if key not in self._norms or last == 0:
            return self._after[key, 0]
        norm = self._norms[key]
        mean = self._average(norm, key)
        if variable is not norm.moving_variance or norm.momentum >= 1:
            return mean
        return mean + self._variance_of_means(norm)

    def _average(self, norm: Any, key: int) -> tf.Tensor:
        """The statistics are linear in what a batch gave, so theirs is its average's."""
        values = [self._after[key, i] for i in range(self._sizes.num_micro_batches)]
        return tf.add_n([tf.cast(w, v.dtype) * v for w, v in zip(self._weights(norm), values)])

    def _variance_of_means(self, norm: Any) -> tf.Tensor:
        """How much the moving variance misses when only variances inside micro-batches count."""
        key = id(norm.moving_mean)
        mean = self._average(norm, key)
        distances = [
            tf.cast(weight, mean.dtype) * tf.square(self._after[key, i] - mean)
            for i, weight in enumerate(self._weights(norm))
        ]
        return tf.add_n(distances) / (1.0 - norm.momentum)

    def _weights(self, norm: Any) -> list[tf.Tensor]:
        """Each micro-batch's part in the statistics: by samples, or by valid places."""
        micro_batches = range(self._sizes.num_micro_batches)
        if (id(norm), 0) not in self._valid:
            return [self._sizes.share(i) for i in micro_batches]
        valid = [self._valid[id(norm), i] for i in micro_batches]
        return [tf.math.divide_no_nan(each, tf.add_n(valid)) for each in valid]


def _is_seed(variable: keras.Variable) -> bool:
    return variable.name == "seed_generator_state"


def _norm_of(stages: Iterable[Stage]) -> dict[int, Any]:
    """For each statistic, by `id`, the batch normalization that it belongs to."""
    layers = [layer for stage in stages for layer in stage.sublayers]
    norms = [layer for layer in layers if isinstance(layer, keras.layers.BatchNormalization)]
    return {id(variable): norm for norm in norms for variable in own_state(norm)}


def _check_one_stage(variable: keras.Variable, first: Stage, second: Stage) -> None:
    if first is not second:
        raise ValueError(
            f"The variable '{variable.path}' is assigned in stage {first.index} and in stage "
            f"{second.index}: its layer keeps state and is called in both, so that the stages "
            "would have to wait for each other. Choose `cuts` that leave all calls of that layer "
            "in one stage."
        )
