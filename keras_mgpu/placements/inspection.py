"""The placement of a model without training it."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
from keras import tree

from keras_mgpu.placements.observation import collected_graphs, explained_errors, report_of
from keras_mgpu.placements.report import PlacementReport


def placement(model: keras.Model, sample_batch: Any) -> PlacementReport:
    """Runs one forward pass and reports on which device each layer's ops ran.

    Nothing is trained, but stateful layers change as in `predict`. Gradients and weight updates
    exist only in training: `DevicePlacementLogger` reports them.

    Example:

    ```python
    report = keras_mgpu.placement(model, x[:32])
    ```

    Args:
        model: The model: plain, split, or under a strategy.
        sample_batch: A batch: inputs, or a tuple of inputs and targets. A list means several
            inputs.

    Returns:
        A `PlacementReport`.
    """
    x = sample_batch[0] if isinstance(sample_batch, tuple) else sample_batch
    model.make_predict_function()
    function = model.predict_function
    with collected_graphs(function) as graphs, explained_errors(model, function):
        model.predict_on_batch(x)
    batch_size = int(np.shape(tree.flatten(x)[0])[0])
    num_samples = -(-batch_size // model.distribute_strategy.num_replicas_in_sync)
    return report_of(model, graphs, function, num_samples)
