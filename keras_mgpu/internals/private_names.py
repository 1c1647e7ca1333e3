"""The private names of Keras and TensorFlow in use, and what depends on each.

A new release may drop any of them. `missing()` holds the list against what is installed, so that
an upgrade starts with a list of what to mend:

```sh
python -m keras_mgpu.internals.private_names
```
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class PrivateName:
    """A name that Keras or TensorFlow does not promise to keep.

    Attributes:
        owner: The module it is imported from, or the kind of object it is an attribute of.
        name: The name itself; for a module's names possibly dotted.
        needed_for: What of this package breaks without it.
    """

    owner: str
    name: str
    needed_for: str

    def __str__(self) -> str:
        return f"{self.owner}: {self.name} (needed for {self.needed_for})"


_CUTTING = "cutting a model into stages"
_MOVING = "moving variables to their stages' devices"
_SLOTS = "optimizer slots beside their variables"
_LOSS = "taking a compiled loss one micro-batch at a time"
_STATE = "layer state over micro-batches, and checkpoints of it"
_SHARING = "PipelineSplit training with what its model is compiled with"
_RESUMING = "resuming inside an epoch"
_NEIGHBOURS = "checkpoints of the state of stock callbacks"
_SEVERAL = "fit with several workers"
_PLACEMENT = "placement reports"
_TIMELINE = "measured timelines"
_DEVICES = "what is known of GPUs"
_STAGES = "stages as functions"

NAMES = (
    PrivateName("keras.src.models.functional", "Functional", _CUTTING),
    PrivateName("keras.src.utils.tracking", "no_automatic_dependency_tracking", _SHARING),
    PrivateName("keras.src.backend", "compute_output_spec", _LOSS),
    PrivateName("keras.src.backend", "get_keras_mask", "masks"),
    PrivateName("keras.src.backend", "set_keras_mask", "masks"),
    PrivateName("keras.src.backend", "standardize_dtype", _LOSS),
    PrivateName("keras.src.backend.common", "global_state.get_global_attribute", _STATE),
    PrivateName("keras.src.backend.tensorflow", "trainer.TensorFlowTrainer", _SEVERAL),
    PrivateName("keras.src.backend.tensorflow", "trainer.reduce_per_replica", _SEVERAL),
    PrivateName("keras.src.losses.loss", "apply_mask", _LOSS),
    PrivateName("keras.src.trainers.compile_utils", "CompileLoss", _LOSS),
    PrivateName("keras.src.trainers.epoch_iterator", "EpochIterator", _RESUMING),
    PrivateName("keras.src.utils.naming", "to_snake_case", "names of variables in checkpoints"),
    PrivateName("global state", "global_seed_generator", _STATE),
    PrivateName("graph", "_nodes_by_depth", _CUTTING),
    PrivateName("graph", "_outputs_struct", _CUTTING),
    PrivateName("graph", "_standardize_inputs", _CUTTING),
    PrivateName("sequential", "_functional", _CUTTING),
    PrivateName("layer", "_call_context_args", "the `training` argument of layers"),
    PrivateName("layer", "_flatten_layers", _CUTTING),
    PrivateName("layer", "_layers", "names of variables in checkpoints"),
    PrivateName("layer", "_metrics", _STATE),
    PrivateName("layer", "_non_trainable_variables", _STATE),
    PrivateName("layer", "_seed_generators", _STATE),
    PrivateName("layer", "_trainable_variables", _MOVING),
    PrivateName("variable", "_direct_assign", _SLOTS),
    PrivateName("variable", "_value", _MOVING),
    PrivateName("optimizer", "_all_reduce_sum_gradients", _SLOTS),
    PrivateName("optimizer", "_apply_weight_decay", _SLOTS),
    PrivateName("optimizer", "_distributed_tf_update_step", _SLOTS),
    PrivateName("optimizer", "_iterations", "the number of steps trained"),
    PrivateName("optimizer", "_learning_rate", _SLOTS),
    PrivateName("optimizer", "_tracker", "an optimizer that is as before if a device is too small"),
    PrivateName("optimizer", "_trainable_variables", _SLOTS),
    PrivateName("optimizer", "_trainable_variables_indices", _SLOTS),
    PrivateName("optimizer", "_var_key", _SLOTS),
    PrivateName("optimizer", "_variables", _SLOTS),
    PrivateName("compiled loss", "_flat_losses", _LOSS),
    PrivateName("compiled model", "_assert_compile_called", _SHARING),
    PrivateName("compiled model", "_compile_config", _SHARING),
    PrivateName("compiled model", "_compile_loss", _LOSS),
    PrivateName("compiled model", "_compile_metrics", _LOSS),
    PrivateName("compiled model", "_distribute_strategy", "refusing models of a strategy"),
    PrivateName("compiled model", "_get_metrics_result_or_logs", _RESUMING),
    PrivateName("compiled model", "_initial_epoch", "resuming at an epoch"),
    PrivateName("compiled model", "_loss_tracker", _SHARING),
    PrivateName("compiled model", "_maybe_symbolic_build", _SEVERAL),
    PrivateName("compiled model", "_symbolic_build", "restoring a model before its first step"),
    PrivateName("epoch iterator", "_distributed_dataset", "restoring before the first step"),
    PrivateName("epoch iterator", "_interrupted_warning", _RESUMING),
    PrivateName("epoch iterator", "_num_batches", _RESUMING),
    PrivateName("ModelCheckpoint", "_batches_seen_since_last_saving", _NEIGHBOURS),
    PrivateName("ModelCheckpoint", "_last_batch_seen", _NEIGHBOURS),
    PrivateName("SwapEMAWeights", "_ema_weights_in_model", _NEIGHBOURS),
    PrivateName("TensorBoard", "_global_test_batch", _NEIGHBOURS),
    PrivateName("TensorBoard", "_global_train_batch", _NEIGHBOURS),
    PrivateName("TensorBoard", "_start_batch", "one profiler at a time"),
    PrivateName("TensorBoard", "_stop_batch", "one profiler at a time"),
    PrivateName("tensorflow", "__internal__.EagerTensor", _SLOTS),
    PrivateName("tensorflow", "__internal__.FuncGraph", _STAGES),
    PrivateName("tensorflow.python.client", "device_lib.list_local_devices", _DEVICES),
    PrivateName("tensorflow.python.eager", "context.context", _PLACEMENT),
    PrivateName(
        "tensorflow.python.eager.polymorphic_function.polymorphic_function", "Function", _PLACEMENT
    ),
    PrivateName("tensorflow.python.framework", "kernels.get_all_registered_kernels", _PLACEMENT),
    PrivateName("tensorflow.python.framework", "op_def_registry.get", _PLACEMENT),
    PrivateName("tensorflow.tsl.profiler.protobuf", "xplane_pb2.XSpace", _TIMELINE),
    PrivateName("context", "_context_handle", "settings of GPUs"),
    PrivateName("context", "check_collective_ops_peer_health", "noticing dead workers"),
    PrivateName("context", "clear_kernel_cache", _PLACEMENT),
    PrivateName("context", "disable_graph_collection", _PLACEMENT),
    PrivateName("context", "enable_graph_collection", _PLACEMENT),
    PrivateName("context", "export_run_metadata", _PLACEMENT),
    PrivateName("context", "get_function_def", _PLACEMENT),
    PrivateName("dataset", "_variant_tensor", "resumable data"),
    PrivateName("traced function", "_list_all_concrete_functions", _PLACEMENT),
    PrivateName("function graph", "_functions", _PLACEMENT),
    PrivateName("extended strategy", "_in_multi_worker_mode", _SEVERAL),
    PrivateName("strategy", "_extended", _SEVERAL),
)


def missing() -> list[PrivateName]:
    """Those of `NAMES` that the installed Keras and TensorFlow do not have."""
    objects = _objects()
    return [each for each in NAMES if not _is_there(each, objects)]


def _is_there(private: PrivateName, objects: Mapping[str, Callable[[], Any]]) -> bool:
    first, *rest = private.name.split(".")
    try:
        if private.owner in objects:
            return hasattr(objects[private.owner](), private.name)
        module = importlib.import_module(private.owner)
        # A name of a module may be a module itself, which need not have been loaded yet.
        found = getattr(module, first, None) or importlib.import_module(f"{private.owner}.{first}")
        for name in rest:
            found = getattr(found, name)
    except (ImportError, AttributeError):
        return False
    return True


def _objects() -> dict[str, Callable[[], Any]]:
    """Makes one object of each kind that private attributes are read of."""
    import keras
    import numpy as np
    import tensorflow as tf
    from tensorflow.python.eager import context

    inputs = keras.Input((2,))
    dense = keras.layers.Dense(2)
    model = keras.Model(inputs, dense(inputs))
    model.compile("adam", "mse", metrics=["mae"], jit_compile=False)  # XLA may not be there.
    data = np.ones((2, 2), "float32")
    model.train_on_batch(data, data)
    double = tf.function(lambda x: x * 2)
    one_device = tf.distribute.OneDeviceStrategy("/CPU:0")

    def epoch_iterator() -> Any:
        from keras.src.backend.tensorflow.trainer import TFEpochIterator

        return TFEpochIterator(x=data, y=data, distribute_strategy=tf.distribute.get_strategy())

    def state() -> Any:
        from keras.src.backend.common import global_state

        keras.random.normal((1,))  # Makes the global seed.
        return global_state.GLOBAL_STATE_TRACKER

    return {
        "global state": state,
        "graph": lambda: model,
        "sequential": lambda: keras.Sequential([keras.Input((2,)), keras.layers.Dense(2)]),
        "layer": lambda: dense,
        "variable": lambda: dense.kernel,
        "optimizer": lambda: model.optimizer,
        "compiled loss": lambda: model._compile_loss,
        "compiled model": lambda: model,
        "epoch iterator": epoch_iterator,
        "ModelCheckpoint": lambda: keras.callbacks.ModelCheckpoint("model.keras"),
        "SwapEMAWeights": lambda: keras.callbacks.SwapEMAWeights(),
        "TensorBoard": lambda: keras.callbacks.TensorBoard(profile_batch=0),
        "context": context.context,
        "dataset": lambda: tf.data.Dataset.range(1),
        "traced function": lambda: double,
        "function graph": lambda: double.get_concrete_function(data).graph,
        "strategy": lambda: one_device,
        "extended strategy": lambda: one_device.extended,
    }


def main() -> int:
    """Prints what is missing; returns how many names that are."""
    gone = missing()
    for each in gone:
        sys.stdout.write(f"gone from {each}\n")
    sys.stdout.write(f"{len(NAMES) - len(gone)} of {len(NAMES)} private names are there.\n")
    return len(gone)


if __name__ == "__main__":
    sys.exit(main())
