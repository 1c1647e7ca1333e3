"""The placement of a model without training it, and the check of it for tests."""

from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
from keras import tree

from keras_mgpu.model.split_model import is_split
from keras_mgpu.placements.observation import collected_graphs, explained_errors, report_of
from keras_mgpu.placements.report import LayerPlacement, PlacementReport
from keras_mgpu.system.devices import short


def placement(model: keras.Model, sample_batch: Any) -> PlacementReport:
    """Runs one forward pass and reports on which device each layer's ops ran.

    Nothing is trained, though stateful layers go on as in `predict`. What only training has,
    gradients and the update of the weights, is in the report of `DevicePlacementLogger`.

    Example:

    ```python
    report = keras_mgpu.placement(model, x[:32])
    ```

    Args:
        model: The model, plain, split or under a strategy.
        sample_batch: A batch: inputs, or a tuple of inputs and targets. A list is several inputs.
    """
    x = sample_batch[0] if isinstance(sample_batch, tuple) else sample_batch
    model.make_predict_function()
    function = model.predict_function
    with collected_graphs(function) as graphs, explained_errors(model, function):
        model.predict_on_batch(x)
    batch_size = int(np.shape(tree.flatten(x)[0])[0])
    num_samples = -(-batch_size // model.distribute_strategy.num_replicas_in_sync)
    return report_of(model, graphs, function, num_samples)


def assert_placement(
    model: keras.Model | PlacementReport,
    expected: Mapping[str, str],
    sample_batch: Any = None,
    asked: bool = False,
) -> None:
    """Raises `AssertionError` if layers are elsewhere than expected, naming each that is.

    Example:

    ```python
    keras_mgpu.assert_placement(model, {"encoder/*": "GPU:0", "head": "GPU:1"})
    ```

    Args:
        model: A model, of which a forward pass is run, or a `PlacementReport`.
        expected: Device by path of a layer, or by pattern (`*` stands for any text). All ops and
            weights of a layer must be there.
        sample_batch: A batch to run. Defaults to zeros in the shape of the model's inputs.
        asked: Whether to compare the devices that ops ask for, instead of those they get. That
            can be checked on a machine that does not have them.

    Raises:
        ValueError: If a pattern fits no layer.
    """
    if isinstance(model, PlacementReport):
        report = model
    else:
        report = placement(model, _zeros(model) if sample_batch is None else sample_batch)
    wrong = []
    for pattern, device in expected.items():
        for layer in _matching(report, pattern):
            found = _devices(layer, asked)
            does_something = layer.num_ops or layer.weights_on
            if does_something and found != {_expected(device)}:
                wrong.append(
                    f"{layer.path} should be on {_expected(device)}, and "
                    f"{'asked for' if asked else 'is on'} {', '.join(sorted(found)) or 'none'}"
                )
    if wrong:
        reasons = [] if asked else report.warnings
        raise AssertionError("\n".join(["Layers are in the wrong place:", *wrong, *reasons]))


def _matching(report: PlacementReport, pattern: str) -> list[LayerPlacement]:
    found = [each for each in report.layers if fnmatch.fnmatchcase(each.path, pattern)]
    if not found:
        paths = [each.path for each in report.layers]
        near = difflib.get_close_matches(pattern, paths, n=3) or paths[:5]
        raise ValueError(
            f"No layer is called so. There are: {', '.join(near)}. Received: {pattern!r}"
        )
    return found


def _devices(layer: LayerPlacement, asked: bool) -> set[str]:
    by_replica = layer.asked if asked else (*layer.got, layer.weights_on)
    return {device for devices in by_replica for device in devices}


def _expected(device: str) -> str:
    name = device if device.startswith("/") else f"/{device}"
    try:
        return short(name)
    except ValueError as error:
        raise ValueError(f'A device must be named like "GPU:0". Received: {device!r}') from error


def _zeros(model: keras.Model) -> Any:
    inner = model.model if is_split(model) else model
    if not getattr(inner, "inputs", None):
        raise ValueError(
            "The shape of the model's inputs is not known. Give a batch: "
            "`assert_placement(model, expected, sample_batch=x[:8])`."
        )
    parts = model.micro_batches if is_split(model) else 1
    size = parts * model.distribute_strategy.num_replicas_in_sync

    def zeros(spec: keras.KerasTensor) -> np.ndarray:
        shape = [size, *(1 if each is None else each for each in spec.shape[1:])]
        return np.full(shape, "") if spec.dtype == "string" else np.zeros(shape, spec.dtype)

    batch = tree.map_structure(zeros, inner.inputs)
    return batch[0] if len(batch) == 1 else batch
