"""Every private name of Keras this package leans on, in one place.

Keras has no public way to walk a model's graph, to carry a mask over a function boundary or to move
a variable to another device. When a new Keras release breaks one of these, it breaks here.
"""

from __future__ import annotations

import contextlib
import re
import sys
import types
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf
from keras import tree
from keras.src import backend
from keras.src.backend.common import global_state
from keras.src.losses.loss import apply_mask
from keras.src.models.functional import Functional
from keras.src.random.seed_generator import GLOBAL_SEED_GENERATOR
from keras.src.trainers.compile_utils import CompileLoss
from keras.src.trainers.epoch_iterator import EpochIterator
from keras.src.utils.naming import to_snake_case
from keras.src.utils.tracking import no_automatic_dependency_tracking

__all__ = ["Functional", "apply_mask", "no_automatic_dependency_tracking"]


def graph_of(layer: Any) -> Functional | None:
    """The Functional graph that calling `layer` runs, or `None` if it runs code of its own."""
    if isinstance(layer, keras.Sequential):
        return layer._functional if type(layer).call is keras.Sequential.call else None
    if isinstance(layer, Functional) and type(layer).call is Functional.call:
        return layer
    return None


def nodes_in_order(graph: Functional) -> Iterator[Any]:
    """The calls of a graph in the order in which Keras runs them, inputs left out."""
    for depth in sorted(graph._nodes_by_depth, reverse=True):
        for node in graph._nodes_by_depth[depth]:
            if node.operation is not None and not node.is_input:
                yield node


def get_mask(tensor: Any) -> Any:
    """The mask Keras attached to a tensor, or `None`."""
    return backend.get_keras_mask(tensor)


def set_mask(tensor: Any, mask: Any) -> None:
    """Attaches a mask to a tensor, as Keras's layers do."""
    backend.set_keras_mask(tensor, mask)


def move_variable(variable: keras.Variable, value: tf.Variable) -> None:
    """Lets a Keras variable live in another `tf.Variable`, on another device.

    The Keras object stays the same, so layers, optimizers and savers notice nothing.
    """
    variable._value = value


def value_of(variable: Any) -> Any:
    """The TensorFlow variable inside a Keras variable; itself, if it is one already."""
    return variable.value if isinstance(variable, keras.Variable) else variable


def copies_of(variable: Any) -> tuple[Any, ...]:
    """The variables of this process that a variable is made of: one for each replica, or itself."""
    return tuple(getattr(value_of(variable), "values", None) or (value_of(variable),))


def sublayers_of(layer: Any) -> list[Any]:
    """The layers right inside a layer; those that a model has beside its graph come last."""
    held = list(getattr(layer, "_layers", ()))
    if not isinstance(layer, (keras.Sequential, Functional)):
        return held
    known = {id(each) for each in layer.layers}
    beside = [
        each
        for each in held
        if id(each) not in known and not isinstance(each, (keras.layers.InputLayer, Functional))
    ]
    return [*layer.layers, *beside]


def own_weights(layer: Any) -> list[keras.Variable]:
    """The weights of this one layer, not of its sublayers."""
    return [*layer._trainable_variables, *layer._non_trainable_variables]


def own_state(layer: keras.Layer) -> list[keras.Variable]:
    """What calling this one layer (not its sublayers) may assign: statistics, seeds, metrics.

    A frozen weight is not among them: it was made trainable, and no call assigns it.
    """
    state = list(layer._non_trainable_variables)
    state += [generator.state for generator in layer._seed_generators]
    for metric in layer._metrics:
        state += metric.variables
    return state


def compute_output_spec(function: Any, inputs: Any) -> Any:
    """What a function of Keras layers would return for inputs like these, as symbolic tensors."""
    return backend.compute_output_spec(function, tree.map_structure(_symbolic, inputs))


def build_losses_and_metrics(
    model: keras.Model, x: Any, y: Any, y_pred: Any, sample_weight: Any
) -> None:
    """Makes what `compile` left to the first batch, without running anything."""
    symbolic = [tree.map_structure(_symbolic, value) for value in (x, y, y_pred, sample_weight)]
    x, y, y_pred, sample_weight = symbolic
    loss, metrics = model._compile_loss, model._compile_metrics
    if loss is not None and not loss.built:
        backend.compute_output_spec(loss, y, y_pred, sample_weight)
    if metrics is not None and not metrics.built:
        backend.compute_output_spec(metrics.update_state, y, y_pred, sample_weight)


def loss_entries(compile_loss: CompileLoss) -> list[tuple[Any, Any]]:
    """Each loss of a built `CompileLoss`, and the metric that tracks it or `None`."""
    metrics = compile_loss.metrics or [None] * len(compile_loss._flat_losses)
    return list(zip(compile_loss._flat_losses, metrics))


def recorded_losses(
    compile_loss: CompileLoss, y_true: Any, y_pred: Any, sample_weight: Any
) -> list[tuple[Any, Any, Any]]:
    """What `CompileLoss` would give to each of its losses: labels, predictions, weights."""
    recorded: list[tuple[Any, Any, Any]] = []

    def record(*arguments: Any) -> Any:
        recorded.append(arguments)
        return tf.zeros(())

    entries = compile_loss._flat_losses
    compile_loss._flat_losses = [entry._replace(loss=record) for entry in entries]
    try:
        with keras.StatelessScope():  # The metrics of single losses shall not count this.
            compile_loss(y_true, y_pred, sample_weight)
    finally:
        compile_loss._flat_losses = entries
    # Of several losses for one lone output, Keras minimizes the first.
    is_lone = not tree.is_nested(y_true) and not tree.is_nested(y_pred)
    return recorded[:1] if is_lone else recorded


def _symbolic(tensor: Any) -> Any:
    if tensor is None:
        return None
    shape = tuple(tensor.shape)
    return keras.KerasTensor(shape, backend.standardize_dtype(tensor.dtype))


def slots_of(optimizer: Any) -> list[tuple[keras.Variable, keras.Variable]]:
    """Each slot of a built optimizer with the variable it belongs to.

    Every Keras optimizer keeps its slots in lists that have one entry for each variable.
    """
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        return slots_of(optimizer.inner_optimizer)
    variables = optimizer._trainable_variables
    found = []
    for name, kept in vars(optimizer).items():
        is_slots = isinstance(kept, list) and len(kept) == len(variables)
        if is_slots and name not in ("_variables", "_trainable_variables"):
            pairs = zip(variables, kept)
            found += [(v, slot) for v, slot in pairs if isinstance(slot, keras.Variable)]
    return found


@contextlib.contextmanager
def without_all_reduce(optimizer: Any) -> Iterator[None]:
    """Lets an optimizer take the gradients as they are.

    Keras sums them over replicas, and be there only one: all gradients go through a single op on
    a single device for that, and back.
    """
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    vars(inner)["_all_reduce_sum_gradients"] = list
    try:
        yield
    finally:
        del vars(inner)["_all_reduce_sum_gradients"]


def rekey_optimizer(optimizer: Any) -> None:
    """Lets a built optimizer find its variables again after they have moved."""
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        rekey_optimizer(optimizer.inner_optimizer)
    variables = optimizer._trainable_variables
    optimizer._trainable_variables_indices = {
        optimizer._var_key(variable): index for index, variable in enumerate(variables)
    }


def variables_by_layer(layer: Any, path: str = "") -> Iterator[tuple[str, keras.Variable]]:
    """Every variable below a layer, with the names of the layers that lead to it.

    `variable.path` will not do: it depends on how a layer came to be built, and begins with the
    name of the model or does not. A variable of a shared layer comes several times.
    """
    for variable in own_weights(layer):
        yield f"{path}{lasting_name(variable)}", variable
    for generator in layer._seed_generators:
        yield f"{path}seed", generator.state
    if isinstance(layer, keras.layers.RNN) and layer.stateful:
        for state in tree.flatten(layer.states or ()):
            yield f"{path}state", state
    below = sublayers_of(layer)
    for name, sublayer in zip(_lasting_names(below), below):
        yield from variables_by_layer(sublayer, f"{path}{name}/")


def lasting_name(variable: keras.Variable) -> str:
    """The name of a variable; `variable_7` was numbered by the process, and is `variable`."""
    return "variable" if re.fullmatch(r"variable_\d+", variable.name) else variable.name


def optimizers_of(model: Any) -> dict[str, Any]:
    """Optimizers that a model keeps beside the compiled one, by the name of the attribute."""
    main = getattr(model, "optimizer", None)
    return {
        name: value
        for name, value in vars(model).items()
        if isinstance(value, keras.optimizers.Optimizer) and value is not main
    }


def _lasting_names(layers: list[Any]) -> list[str]:
    """Names of layers beside one another that are the same when the model is made again.

    Keras numbers layers without a name through the whole life of a process: `dense_7` would be
    `dense` in the next. Here they are numbered among their neighbours, in the same order.
    """
    numbers: dict[str, list[int]] = {}
    found = []
    for layer in layers:
        kind = to_snake_case(type(layer).__name__)
        match = re.fullmatch(rf"{re.escape(kind)}(?:_(\d+))?", layer.name)
        found.append((layer.name, kind, int(match[1] or 0)) if match else (layer.name, "", 0))
        if match:
            numbers.setdefault(kind, []).append(int(match[1] or 0))
    names = []
    for name, kind, number in found:
        if kind:
            rank = sorted(numbers[kind]).index(number)
            name = kind if rank == 0 else f"{kind}_{rank}"
        names.append(name)
    return names


def optimizer_variables(optimizer: Any) -> list[keras.Variable]:
    """All variables of an optimizer, and of the one inside it."""
    inner = getattr(optimizer, "inner_optimizer", None)
    return [*optimizer.variables, *([] if inner is None else inner.variables)]


def steps_of(optimizer: Any) -> int:
    """Batches that an optimizer was given; 0 without one.

    With accumulated gradients Keras's `iterations` are updates, of which there are fewer.
    """
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    return 0 if inner is None else int(inner._iterations.numpy())


def global_seed_state() -> keras.Variable | None:
    """The state behind `keras.random` calls without a seed, if there were any."""
    generator = global_state.get_global_attribute(GLOBAL_SEED_GENERATOR)
    return None if generator is None else generator.state


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
        """What gives `fit` its batches; a loop of one's own has none."""
        iterator = self.names.get("epoch_iterator")
        return iterator if isinstance(iterator, EpochIterator) else None


def training_call() -> TrainingCall:
    """Finds out who runs the callback that asks.

    Keras tells a callback neither its neighbours nor the data. Both stand in the frames above it:
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
    as short. And if all were trained, which data of unknown length tells too late, the epoch would
    have no losses.
    """

    def __init__(self, model: Any, epoch_iterator: Any) -> None:
        self._model = model
        self._iterator = epoch_iterator
        self._steps_per_epoch = epoch_iterator.steps_per_epoch
        self._num_batches = epoch_iterator._num_batches

    @property
    def is_stream(self) -> bool:
        """Whether epochs are pieces of one long pass over the data (`steps_per_epoch`)."""
        return self._steps_per_epoch is not None

    def num_trained(self, first: int, last: int) -> int:
        """How many batches a call has trained that Keras gave these numbers.

        It numbers them as if an epoch always were a multiple of `steps_per_execution`.
        """
        length = None if self.is_stream else self._iterator._num_batches
        return (last if length is None else min(last, length - 1)) - first + 1

    def is_last(self, batch: int) -> bool:
        """Whether an epoch is known to end with a batch."""
        length = self._iterator.steps_per_epoch or self._iterator._num_batches
        return length is not None and batch + 1 >= length

    def shorten(self, num_trained: int, logs: Mapping[str, float]) -> None:
        """For an epoch of which so many batches are trained, the last of them with these logs."""
        results = self._model._get_metrics_result_or_logs
        vars(self._model)["_get_metrics_result_or_logs"] = lambda given: results(given or logs)
        self._iterator._interrupted_warning = lambda: None
        if self._steps_per_epoch is not None:
            self._iterator.steps_per_epoch = self._steps_per_epoch - num_trained
        elif self._num_batches is not None:
            self._iterator._num_batches = self._num_batches - num_trained

    def restore(self) -> None:
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

    Only one profiler can run at a time, and whoever asked for one shall get it.
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
