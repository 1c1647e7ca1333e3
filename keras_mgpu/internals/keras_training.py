"""Keras's training loop: who runs a callback, how long an epoch is, what it has counted."""

from __future__ import annotations

import contextlib
import sys
import types
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf
from keras import tree
from keras.src import backend
from keras.src.trainers.epoch_iterator import EpochIterator

from keras_mgpu.internals.keras_graph import flatten_layers, no_automatic_dependency_tracking
from keras_mgpu.internals.keras_variables import copies_of


@dataclass(frozen=True)
class TrainingCall:
    """Who runs a callback.

    Args:
        callbacks: All callbacks of the run, itself among them.
        frame: That of `fit`, or of the loop that drives the callbacks.
    """

    callbacks: tuple[Any, ...] = ()
    frame: types.FrameType | None = None

    @property
    def code(self) -> types.CodeType | None:
        return None if self.frame is None else self.frame.f_code

    @property
    def names(self) -> Mapping[str, Any]:
        """The local names there; `fit` has `x`."""
        return {} if self.frame is None else self.frame.f_locals

    @property
    def epoch_iterator(self) -> Any:
        """The source of the batches of `fit`. A custom loop has none."""
        iterator = self.names.get("epoch_iterator")
        return iterator if isinstance(iterator, EpochIterator) else None


def training_call() -> TrainingCall:
    """Finds out who runs the callback that asks.

    Keras gives a callback neither the other callbacks nor the data. Both are in the frames above:
    a list of callbacks is the `self` of its own methods, and `fit` calls these.
    """
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None:
        owner = frame.f_locals.get("self")
        if isinstance(owner, keras.callbacks.CallbackList):
            while frame is not None and frame.f_locals.get("self") is owner:
                frame = frame.f_back
            return TrainingCall(tuple(owner.callbacks), frame)
        frame = frame.f_back
    return TrainingCall()


def refuse_twice(callback: Any, callbacks: Iterable[Any]) -> None:
    """Raises `ValueError` if a callback is more than once in a list."""
    if sum(each is callback for each in callbacks) > 1:
        raise ValueError(
            f"The same {type(callback).__name__} is twice in the list of callbacks. Leave one out."
        )


def build_like_fit(model: keras.Model, epoch_iterator: Any) -> None:
    """Makes the variables of model, metrics and optimizer that `fit` would make in its first step.

    Only with a strategy does `fit` make them before it calls `on_train_begin`. A model that is
    never called as a whole, as adversarial ones are, is left as it is: its parts have theirs.
    """

    def symbolic(spec: Any) -> Any:
        return keras.KerasTensor(tuple(spec.shape), backend.standardize_dtype(spec.dtype))

    if model._distribute_strategy is None:
        spec = epoch_iterator._distributed_dataset.element_spec
        with contextlib.suppress(RuntimeError):
            model._symbolic_build(data_batch=tree.map_structure(symbolic, spec))


class EpochLength:
    """How many batches `fit` takes in an epoch, for an epoch of which some are trained already.

    Left alone, `fit` would complain that the data ran out, and from then on take every epoch to be
    as short. And if all were trained, which is known too late for data of unknown length, the
    epoch would have no losses.
    """

    def __init__(self, model: Any = None, epoch_iterator: Any = None) -> None:
        self._model = model
        self._iterator = epoch_iterator
        self._steps_per_epoch = getattr(epoch_iterator, "steps_per_epoch", None)
        self._num_batches = getattr(epoch_iterator, "_num_batches", None)

    @property
    def is_of_fit(self) -> bool:
        """Whether `fit` takes the batches; nothing is known of a custom loop."""
        return self._iterator is not None

    @property
    def is_stream(self) -> bool:
        """Whether epochs are pieces of one long pass over the data (`steps_per_epoch`)."""
        return self._steps_per_epoch is not None

    @property
    def num_batches(self) -> int | None:
        """Batches that the data has for the running epoch; `None` if unknown, or for a stream."""
        return None if self._iterator is None or self.is_stream else self._iterator._num_batches

    def is_last(self, batch: int) -> bool:
        """Whether an epoch is known to end with a batch."""
        if self._iterator is None:
            return False
        length = self._iterator.steps_per_epoch or self._iterator._num_batches
        return length is not None and batch + 1 >= length

    def shorten(self, num_trained: int, logs: Mapping[str, float]) -> None:
        """For an epoch of which so many batches are trained, the last of them with these logs."""
        if self._iterator is None:
            return
        results = self._model._get_metrics_result_or_logs
        vars(self._model)["_get_metrics_result_or_logs"] = lambda given: results(given or logs)
        self._iterator._interrupted_warning = lambda: None
        if self._steps_per_epoch is not None:
            self._iterator.steps_per_epoch = self._steps_per_epoch - num_trained
        elif self._num_batches is not None:
            self._iterator._num_batches = self._num_batches - num_trained

    def restore(self) -> None:
        if self._iterator is None:
            return
        vars(self._model).pop("_get_metrics_result_or_logs", None)
        vars(self._iterator).pop("_interrupted_warning", None)
        self._iterator.steps_per_epoch = self._steps_per_epoch
        self._iterator._num_batches = self._num_batches


def begin_at_epoch(model: Any, epoch: int | None) -> None:
    """Lets a `fit` that is about to begin start at a later epoch; `None` takes that back."""
    model._initial_epoch = epoch


def batch_size_of(epoch_iterator: Any) -> int | None:
    """The size of the batches that `fit` takes, where its data knows it."""
    size = getattr(getattr(epoch_iterator, "data_adapter", None), "batch_size", None)
    return None if size is None else int(size)


def profiled_until(callbacks: Iterable[Any]) -> int:
    """The last batch that a user's own TensorBoard callback profiles; 0 if there is none.

    Only one profiler can run at a time, and the user's own comes first.
    """
    boards = [each for each in callbacks if isinstance(each, keras.callbacks.TensorBoard)]
    return max([each._stop_batch for each in boards if each._start_batch > 0], default=0)


def num_samples_counted(model: Any) -> list[int]:
    """How many samples each replica of this process has trained since metrics were reset.

    As Keras counts them for the loss; a model with a `train_step` of its own may not.
    """
    count = getattr(getattr(model, "_loss_tracker", None), "count", None)
    return [0] if count is None else [int(value) for value in _read(count)]


def loss_summed(model: Any) -> float:
    """The sum of losses that goes with `num_samples_counted`."""
    total = getattr(getattr(model, "_loss_tracker", None), "total", None)
    return 0.0 if total is None else sum(float(value) for value in _read(total))


def _read(variable: Any) -> list[tf.Tensor]:
    """For a training thread that waits: `numpy()` would take three times as long."""
    read = tf.raw_ops.ReadVariableOp
    return [read(resource=copy.handle, dtype=copy.dtype) for copy in copies_of(variable)]


def supports_open_batches_of_stateful_layers() -> bool:
    """Whether stateful recurrent layers can be traced for batches of any size: since Keras 3.14."""
    major, minor = keras.__version__.split(".")[:2]
    return (int(major), int(minor)) >= (3, 14)


def strategy_of(model: keras.Model) -> Any:
    """The strategy in whose scope a model was made, or `None`."""
    return model._distribute_strategy


def is_default_strategy(strategy: Any) -> bool:
    """Whether a strategy is the one TensorFlow uses where there is none."""
    return type(strategy).__name__ == "_DefaultDistributionStrategy"


@contextlib.contextmanager
def full_tracebacks() -> Iterator[None]:
    """Errors are raised as they are. Keras makes others of them, of types of its own choice."""
    was_filtered = keras.config.is_traceback_filtering_enabled()
    keras.config.disable_traceback_filtering()
    try:
        yield
    finally:
        if was_filtered:
            keras.config.enable_traceback_filtering()


def forget_functions(model: keras.Model) -> None:
    """Drops the traced functions of a model and of the models inside it."""
    for layer in flatten_layers(model):
        if isinstance(layer, keras.Model):
            layer.train_function = layer.test_function = layer.predict_function = None
            if hasattr(layer, "generate_function"):  # That of keras_hub's models.
                layer.generate_function = None


def run_without_xla(model: keras.Model) -> None:
    """Has Keras run a model, and the models inside it, without XLA.

    XLA cannot reach variables of another device, and `jit_compile="auto"` turns it on wherever
    there are GPUs. What a saved file says of `jit_compile` stays as it is.
    """
    for layer in flatten_layers(model):
        if isinstance(layer, keras.Model):
            layer.jit_compile = False


class SharesCompiled(keras.Model):
    """A model that trains with the optimizer, losses and metrics of another one."""

    def is_shared_with(self, model: keras.Model) -> bool:
        """Whether `model` has not been compiled again since they were shared."""
        return getattr(self, "_compile_config", None) is model._compile_config

    @no_automatic_dependency_tracking
    def share_compiled(self, model: keras.Model) -> None:
        """Takes over what `model` is compiled with, object by object."""
        super().compile(
            optimizer=model.optimizer,
            loss=model.loss,
            run_eagerly=model.run_eagerly,
            steps_per_execution=model.steps_per_execution,
            jit_compile=False,
            auto_scale_loss=False,
        )
        self._compile_loss = model._compile_loss
        self._compile_metrics = model._compile_metrics
        self._loss_tracker = model._loss_tracker
        self._compile_config = model._compile_config

    @property
    def loss_tracker(self) -> Any:
        """The metric that averages the loss over an epoch."""
        return self._loss_tracker

    def before_use(self) -> None:
        """Called before `fit`, `evaluate` and their like look whether the model is compiled."""

    def _assert_compile_called(self, method_name: str | None = None) -> None:
        self.before_use()
        super()._assert_compile_called(method_name)

    def check_compiled(self, method_name: str) -> None:
        """Raises what `fit` would raise for a model that is not compiled."""
        self._assert_compile_called(method_name)


def write_jit_compile(model: keras.Model, jit_compile: Any) -> None:
    """Has a saved file say this for `jit_compile`, whatever the model was compiled with."""
    model._compile_config.config["jit_compile"] = jit_compile
