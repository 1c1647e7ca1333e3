"""Exports a checkpoint as a plain Keras file."""

from __future__ import annotations

import json

import keras

from keras_mgpu.checkpoints.loading import has_model, load, read_file
from keras_mgpu.checkpoints.manifest import DamagedError
from keras_mgpu.checkpoints.store import MODEL, Entry, read_manifest
from keras_mgpu.checkpoints.training_state import TrainingState


def export(entry: Entry, path: str) -> None:
    """Writes the model of a checkpoint, with its optimizer's state, to a `.keras` file.

    Raises:
        ValueError: If the model needs custom code, or the checkpoint is damaged.
    """
    if not path.endswith(".keras"):
        raise ValueError(f"The file name must end with .keras. Received: {path!r}")
    try:
        if not has_model(read_manifest(entry.path)):
            raise ValueError(
                "The checkpoint does not contain the model's configuration. In Python, build the "
                "model, then call `keras_mgpu.restore_checkpoint(directory, model)` and "
                "`model.save(...)`."
            )
        model = _model(entry)
        state = TrainingState(model)
        loaded = load(entry, accept=state.check)
    except DamagedError as error:
        raise ValueError(f"{entry.name} is damaged: {error}") from error
    state.restore(loaded)
    model.save(path)


def _model(entry: Entry) -> keras.Model:
    config = json.loads(read_file(entry, MODEL))
    try:
        model = keras.saving.deserialize_keras_object(config)
        compile_config = config.get("compile_config")
        if compile_config and not model.compiled:
            model.compile_from_config(compile_config)
    except (TypeError, ValueError, NotImplementedError) as error:
        why = str(error)[:200]
        raise ValueError(
            f"The model needs custom code ({why}). In Python, build the model, then call "
            "`keras_mgpu.restore_checkpoint(directory, model)` and `model.save(...)`."
        ) from error
    return model
