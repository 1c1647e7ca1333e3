"""Takes a snapshot of a training run, and restores a run from a checkpoint."""

from __future__ import annotations

import datetime
import json
import logging
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import keras
import tensorflow as tf

from keras_mgpu.checkpoints import host_copies
from keras_mgpu.checkpoints.loading import Loaded
from keras_mgpu.checkpoints.manifest import Manifest
from keras_mgpu.checkpoints.mismatch import mismatch_of
from keras_mgpu.checkpoints.parts import Snapshot
from keras_mgpu.checkpoints.resumable_dataset import Position
from keras_mgpu.checkpoints.variables import metric_variables_of, replica_state_of, variables_of
from keras_mgpu.internals.keras_optimizers import build_on, optimizers_of, steps_of
from keras_mgpu.internals.keras_training import is_default_strategy
from keras_mgpu.model.split_model import unsplit
from keras_mgpu.system.cluster import Workers
from keras_mgpu.system.memory import num_bytes_of
from keras_mgpu.version import __version__

logger = logging.getLogger("keras_mgpu")


class TrainingState:
    """The variables of a model and its optimizer, to be saved and restored.

    Args:
        model: The model. It must be built.
        optimizer: Its optimizer. Defaults to the one it was compiled with.
        workers: The workers that save together.
    """

    def __init__(self, model: Any, optimizer: Any = None, workers: Workers | None = None) -> None:
        if not unsplit(model).variables:
            raise ValueError(
                "The model has no variables yet. Build it first: `model.build(input_shape)`. "
                f"Received: model={model}"
            )
        self._model = model
        self._optimizer = optimizer if optimizer is not None else getattr(model, "optimizer", None)
        self._workers = workers or Workers()
        self._model_text: str | None = None
        self._build_optimizer()

    def _build_optimizer(self) -> None:
        if self._optimizer is None or self._optimizer.built:
            return
        if unsplit(self._model) is not self._model:
            # All slots together may not fit one device. The first step moves them to theirs.
            build_on("/CPU:0", self._optimizer, self._model.trainable_variables)
            return
        with self._model.distribute_strategy.scope():
            self._optimizer.build(self._model.trainable_variables)

    @property
    def variables(self) -> dict[str, Any]:
        return variables_of(self._model, self._optimizer)

    @property
    def step(self) -> int:
        """Number of steps that the optimizer has taken."""
        return steps_of(self._optimizer)

    def snapshot(
        self,
        step: int,
        epoch: int,
        batch: int,
        values: Mapping[str, float],
        state: Mapping[str, Any],
        place: Position | None = None,
        arrays: Mapping[str, Any] | None = None,
    ) -> Snapshot:
        """Copies everything to host memory.

        Args:
            step: Training steps taken.
            epoch: The running epoch or, if `batch` is 0, the next one.
            batch: Batches of that epoch that were trained.
            values: Logs to save with it.
            state: What is not a tensor.
            place: This worker's position in its data.
            arrays: More tensors to save, by key.
        """
        variables = self.variables
        # All of the first worker's: a mean and a variance must belong to the same samples.
        own = replica_state_of(self._model, variables)
        sizes = [(key, num_bytes_of(each)) for key, each in variables.items() if key not in own]
        mine = {*self._workers.share(sizes), *(own if self._workers.is_first else ())}
        share = {key: variable for key, variable in variables.items() if key in mine}
        parts: dict[str, dict[str, tf.Tensor]] = {}
        for key, tensor in host_copies.to_host(share).items():
            parts.setdefault(host_copies.device_of(variables[key]), {})[key] = tensor
        others = parts.setdefault(next(iter(parts), ""), {})
        copies = metric_variables_of(self._model)
        copies |= own if self._model.distribute_strategy.num_replicas_in_sync > 1 else {}
        others.update(host_copies.copies_to_host(copies, self._workers.index))
        if self._workers.is_first:
            with tf.device("/CPU:0"):
                others.update({key: tf.constant(each) for key, each in (arrays or {}).items()})
        split = self._model if unsplit(self._model) is not self._model else None
        manifest = Manifest(
            step,
            epoch,
            batch,
            dict(values),
            datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            self._topology(variables),
            split and json.loads(split.plan.to_json()),
            split and json.loads(split.schedule.to_json()),
        )
        of_worker = {"place": None if place is None else asdict(place)}
        return Snapshot(manifest, parts, state, of_worker, self._model_as_text())

    def check(self, manifest: Manifest, strict: bool = True) -> None:
        """Compares a checkpoint with the model before anything is read.

        Raises:
            ValueError: If `strict` and they differ. Lists every difference.
        """
        mismatch = mismatch_of(manifest.tensors, self.variables)
        if not mismatch:
            return
        if strict:
            unbuilt = [
                f"`model.{name}` has no slots yet. Call `model.{name}.build(variables)` first.\n"
                for name, each in optimizers_of(unsplit(self._model)).items()
                if not each.built
            ]
            raise ValueError(
                "The checkpoint does not match the model and its optimizer. Nothing was changed.\n"
                f"{mismatch}\n{''.join(unbuilt)}"
                "To restore what fits, use `keras_mgpu.restore_checkpoint(..., strict=False)`."
            )
        logger.warning("Only what fits is restored from the checkpoint:\n%s", mismatch)

    def restore(self, loaded: Loaded) -> None:
        """Restores the model and its optimizer."""
        variables, workers = self.variables, self._workers
        host_copies.assign(variables, loaded.tensors)
        state = replica_state_of(self._model, variables)
        host_copies.assign_copies(state, loaded.tensors, workers.index, workers.count)

    def restore_metrics(self, loaded: Loaded) -> None:
        """Restores the counts of the metrics."""
        metrics = metric_variables_of(self._model)
        workers = self._workers
        host_copies.assign_counts(metrics, loaded.tensors, workers.index, workers.count)

    def place(self, loaded: Loaded) -> Position | None:
        """This worker's position in its data; `None` if it was not saved."""
        workers = loaded.state["workers"]
        is_same = len(workers) == self._workers.count
        fields = workers[self._workers.index if is_same else 0]["place"]
        return None if fields is None else Position(**fields)

    def _model_as_text(self) -> str | None:
        """The model's configuration as JSON; `None` if it cannot be serialized."""
        if self._model_text is None:
            try:
                config = keras.saving.serialize_keras_object(unsplit(self._model))
                self._model_text = json.dumps(config)
            except Exception as error:  # `get_config` of a custom layer can raise anything.
                logger.info(
                    "The model cannot be serialized, so its checkpoints cannot be exported: %s",
                    error,
                )
                self._model_text = ""
        return self._model_text or None

    def _topology(self, variables: Mapping[str, Any]) -> dict[str, Any]:
        strategy = self._model.distribute_strategy
        is_none = is_default_strategy(strategy)
        devices = sorted({host_copies.device_of(variable) for variable in variables.values()})
        return {
            "strategy": "no strategy" if is_none else type(strategy).__name__,
            "num_replicas": strategy.num_replicas_in_sync,
            "workers": list(self._workers.names),
            "devices": devices,
            "keras_mgpu": __version__,
            "keras": keras.__version__,
            "tensorflow": tf.__version__,
        }
