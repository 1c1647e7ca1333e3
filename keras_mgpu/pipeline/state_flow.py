"""What becomes of the state that layers keep, when a batch goes through in micro-batches.

Three kinds of state, three rules:

- **Seeds.** Micro-batch 0 draws as plain Keras would; micro-batch i draws from a stream of its own
  that depends on the seed and on i alone. So dropout does not depend on schedule, stages or
  devices, and after the batch the seed is where plain Keras would leave it.
- **Statistics of batch normalization**, unless they should move once per micro-batch. Every
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

from keras_mgpu.internals.identity import IdentityMap, IdentitySet
from keras_mgpu.internals.keras_variables import own_non_trainable, own_state
from keras_mgpu.model.stages import Stage
from keras_mgpu.pipeline.micro_batches import BatchSizes, Number, as_tensor
from keras_mgpu.pipeline.stage.stage_function import StageOutputs

# Apart enough that no two micro-batches share a stream; odd, so that none repeats.
SEED_STRIDE = 0x9E3779B1


class StateFlow:
    """Hands out the state each run of a stage starts from, and takes what it left.

    Args:
        sizes: How many samples each micro-batch has.
        norms: For each statistic that moves once per batch, the batch normalization it belongs to.
    """

    def __init__(self, sizes: BatchSizes, norms: IdentityMap[keras.Variable, Any]) -> None:
        self._sizes = sizes
        self._norms = norms
        num = sizes.num_micro_batches
        self._before: IdentityMap[keras.Variable, tf.Tensor] = IdentityMap()
        self._after: list[IdentityMap[keras.Variable, tf.Tensor]]
        self._after = [IdentityMap() for _ in range(num)]
        self._valid: list[IdentityMap[keras.Layer, tf.Tensor]]
        self._valid = [IdentityMap() for _ in range(num)]
        self._writers: IdentityMap[keras.Variable, Stage] = IdentityMap()

    def reader(self, micro_batch: int) -> RunState:
        """The state as one run of a stage sees it."""
        return RunState(self, micro_batch)

    def read(self, variable: keras.Variable, micro_batch: int) -> tf.Tensor:
        """The value of a variable in this micro-batch, as of now."""
        after = self._after[micro_batch]
        if variable in after:  # An earlier stage has assigned it.
            return after[variable]
        if _is_seed(variable):
            return self._initial(variable) + tf.constant(
                [micro_batch * SEED_STRIDE, 0], dtype=variable.dtype
            )
        if variable in self._norms or micro_batch == 0:
            return self._initial(variable)
        before = self._after[micro_batch - 1]
        return before[variable] if variable in before else self._initial(variable)

    def write(self, stage: Stage, micro_batch: int, outputs: StageOutputs) -> None:
        """Takes what a run of a stage assigned."""
        for variable, value in outputs.state.items():
            writer = self._writers.setdefault(variable, stage)
            if self.passes_on(variable):
                _check_one_stage(variable, writer, stage)
                self._warn_once(variable, stage)
                if not self._sizes.are_known:
                    before = self.read(variable, micro_batch)
                    value = tf.where(self._sizes.counts[micro_batch] > 0, value, before)
                    value.set_shape(before.shape)  # Lost where a number is chosen from a call.
            self._after[micro_batch][variable] = value
        for norm, valid in outputs.valid.items():
            is_used = as_tensor(self._sizes.is_used(micro_batch), valid.dtype)
            self._valid[micro_batch][norm] = valid * is_used

    def assign(self) -> None:
        """Puts what the whole batch left into the variables, each on its own device."""
        for variable in self._writers:
            with tf.device(variable.value.device):
                variable.assign(self._final(variable))

    def _initial(self, variable: keras.Variable) -> tf.Tensor:
        if variable not in self._before:
            with tf.device(variable.value.device):
                self._before[variable] = tf.identity(tf.convert_to_tensor(variable.value))
        return self._before[variable]

    def _warn_once(self, variable: keras.Variable, stage: Stage) -> None:
        """State that layers keep beside metrics moves with each micro-batch: worth knowing.

        That statistics of batch normalization do so was asked for.
        """
        norm = keras.layers.BatchNormalization
        layers = [layer for layer in stage.sublayers if not isinstance(layer, norm)]
        kept = IdentitySet(v for layer in layers for v in own_non_trainable(layer))
        is_first = variable not in self._after[0]
        if is_first and self._sizes.num_micro_batches > 1 and variable in kept:
            warnings.warn(
                f"The layer state '{variable.path}' is updated once per micro-batch, not once per "
                "batch as in plain Keras. Use `micro_batches=1` for the behavior of plain Keras.",
                stacklevel=2,
            )

    def passes_on(self, variable: keras.Variable) -> bool:
        """Whether what one micro-batch assigned is what the next one starts from."""
        return not (_is_seed(variable) or variable.trainable or variable in self._norms)

    def _final(self, variable: keras.Variable) -> tf.Tensor:
        last = self._sizes.num_micro_batches - 1
        if self.passes_on(variable):
            return self._after[last][variable]
        if variable not in self._norms or last == 0:
            return self._after[0][variable]
        norm = self._norms[variable]
        mean = self._average(norm, variable)
        if variable is not norm.moving_variance or norm.momentum >= 1:
            return mean
        return mean + self._variance_of_means(norm)

    def _average(self, norm: Any, variable: keras.Variable) -> tf.Tensor:
        """The statistics are linear in what a batch gave, so theirs is its average's."""
        values = [after[variable] for after in self._after]
        return tf.add_n([as_tensor(w, v.dtype) * v for w, v in zip(self._weights(norm), values)])

    def _variance_of_means(self, norm: Any) -> tf.Tensor:
        """How much the moving variance misses when only variances inside micro-batches count."""
        mean = self._average(norm, norm.moving_mean)
        distances = [
            as_tensor(weight, mean.dtype) * tf.square(after[norm.moving_mean] - mean)
            for after, weight in zip(self._after, self._weights(norm))
        ]
        return tf.add_n(distances) / (1.0 - norm.momentum)

    def _weights(self, norm: Any) -> list[Number]:
        """Each micro-batch's part in the statistics: by samples, or by valid places."""
        if norm not in self._valid[0]:
            return [self._sizes.share(i) for i in range(self._sizes.num_micro_batches)]
        valid = [each[norm] for each in self._valid]
        return [tf.math.divide_no_nan(each, tf.add_n(valid)) for each in valid]


class RunState:
    """The state of layers as one run of a stage sees it.

    A second run, to recompute, must see what the first one saw, though that has moved it since.

    Args:
        flow: The state over all micro-batches.
        micro_batch: The micro-batch of the run.
    """

    def __init__(self, flow: StateFlow, micro_batch: int) -> None:
        self._flow = flow
        self._micro_batch = micro_batch
        self._seen: IdentityMap[keras.Variable, tf.Tensor] = IdentityMap()

    def read(self, variable: keras.Variable) -> tf.Tensor:
        """The value the run starts from."""
        if variable not in self._seen:
            self._seen[variable] = self._flow.read(variable, self._micro_batch)
        return self._seen[variable]


def _is_seed(variable: keras.Variable) -> bool:
    return bool(variable.name == "seed_generator_state")


def norms_by_statistic(stages: Iterable[Stage]) -> IdentityMap[keras.Variable, Any]:
    """For each statistic of a model, the batch normalization that it belongs to."""
    layers = [layer for stage in stages for layer in stage.sublayers]
    norms = [layer for layer in layers if isinstance(layer, keras.layers.BatchNormalization)]
    return IdentityMap((variable, norm) for norm in norms for variable in own_state(norm))


def _check_one_stage(variable: keras.Variable, first: Stage, second: Stage) -> None:
    if first is not second:
        raise ValueError(
            f"The variable '{variable.path}' is assigned in stage {first.index} and in stage "
            f"{second.index}: its layer keeps state and is called in both, so each stage would "
            "have to wait for the other. Choose `cuts` that keep all calls of that layer in one "
            "stage."
        )
