"""The check of a model's placement, for tests."""

from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Iterator, Mapping
from typing import Any

import keras
import numpy as np
from keras import tree

from keras_mgpu.model.split_model import is_split, unsplit
from keras_mgpu.placements.inspection import placement
from keras_mgpu.placements.report import PlacementReport
from keras_mgpu.placements.report_parts import LayerPlacement
from keras_mgpu.system.devices import short


def assert_placement(
    model: keras.Model | PlacementReport,
    expected: Mapping[str, str],
    sample_batch: Any = None,
    asked: bool = False,
) -> None:
    """Raises `AssertionError` if layers are not where they are expected, and names them.

    Example:

    ```python
    keras_mgpu.assert_placement(model, {"encoder/*": "GPU:0", "head": "GPU:1"})
    ```

    Args:
        model: A model, to run a forward pass of, or a `PlacementReport`.
        expected: Device by path of a layer or by pattern, in which `*` stands for any text. All
            ops and weights of a layer must be on that device.
        sample_batch: A batch to run. Defaults to zeros with the shape of the model's inputs.
        asked: Whether to compare the devices that ops ask for instead of those they get. This
            can be checked on a machine without these devices. Defaults to `False`.

    Raises:
        AssertionError: If layers are on another device.
        ValueError: If a pattern matches no layer.
    """
    if isinstance(model, PlacementReport):
        report = model
    else:
        report = placement(model, _zeros(model) if sample_batch is None else sample_batch)
    wrong = list(_misplaced(report, expected, asked))
    if wrong:
        reasons = [] if asked else report.warnings
        raise AssertionError("\n".join(["Layers are on the wrong device:", *wrong, *reasons]))


def _misplaced(report: PlacementReport, expected: Mapping[str, str], asked: bool) -> Iterator[str]:
    for pattern, device in expected.items():
        wanted = _short_name(device)
        for layer in _matching(report, pattern):
            found = _devices(layer, asked)
            has_device = bool(layer.num_ops or layer.weights_on)
            if has_device and found != {wanted}:
                verb = "asked for" if asked else "is on"
                names = ", ".join(sorted(found)) or "no device"
                yield f"  {layer.path} {verb} {names} instead of {wanted}"


def _matching(report: PlacementReport, pattern: str) -> list[LayerPlacement]:
    found = [each for each in report.layers if fnmatch.fnmatchcase(each.path, pattern)]
    if not found:
        paths = [each.path for each in report.layers]
        near = difflib.get_close_matches(pattern, paths, n=3) or paths[:5]
        raise ValueError(
            f"No layer matches a pattern of `expected`. Similar layers: {', '.join(near)}. "
            f"Received: pattern={pattern!r}"
        )
    return found


def _devices(layer: LayerPlacement, asked: bool) -> set[str]:
    by_replica = layer.asked if asked else (*layer.got, layer.weights_on)
    return {device for devices in by_replica for device in devices}


def _short_name(device: str) -> str:
    name = device if device.startswith("/") else f"/{device}"
    try:
        return short(name)
    except ValueError as error:
        raise ValueError(
            f'A device must be named like "GPU:0". Received: device={device!r}'
        ) from error


def _zeros(model: keras.Model) -> Any:
    """A batch of zeros, with one sample per micro-batch and replica."""
    inner = unsplit(model)
    if not getattr(inner, "inputs", None):
        raise ValueError(
            "The shapes of the model's inputs are not known. Pass a batch: "
            f"`assert_placement(model, expected, sample_batch=x[:8])`. Received: model={model}"
        )
    num_parts = model.micro_batches if is_split(model) else 1
    size = num_parts * model.distribute_strategy.num_replicas_in_sync

    def zeros(spec: keras.KerasTensor) -> np.ndarray:
        shape = [size, *(1 if each is None else each for each in spec.shape[1:])]
        return np.full(shape, "") if spec.dtype == "string" else np.zeros(shape, spec.dtype)

    batch = tree.map_structure(zeros, inner.inputs)
    return batch[0] if len(batch) == 1 else batch
