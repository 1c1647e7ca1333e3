"""The promise: a split model trains to plain Keras's numbers, in every case users have."""

import functools
import warnings

import keras
import numpy as np
import pytest
from transparency import BATCH_SIZE, CASES

from keras_mgpu import PipelineSplit

# Number of devices, and options. 8 micro-batches are more than the last batch has samples.
SPLITS = {
    "gpipe": (2, {"schedule": "gpipe", "micro_batches": 3}),
    "1f1b": (3, {"schedule": "1f1b", "micro_batches": 8}),
    "interleaved": (2, {"schedule": "interleaved", "micro_batches": 4, "stages_per_device": 2}),
    "zero_bubble": (2, {"schedule": "zero_bubble", "micro_batches": 4}),
    "one_micro_batch": (3, {"micro_batches": 1}),
    "recompute": (3, {"schedule": "1f1b", "micro_batches": 4, "recompute": True}),
}
EPOCHS = 2
# One of each kind: with a batch that is not cut, and evaluated however it was trained.
EVERY_WAY_CASES = {
    "dense",
    "mask_lstm",
    "two_outputs",
    "add_loss_sum",
    "tied_embedding",
    "sparse_gradients",
    "coupled_loss",
    "mixed_float16",
    "metrics",
}
# A forward pass that is run again does not see what the loss, the optimizer or the metrics are.
RECOMPUTED_CASES = EVERY_WAY_CASES | {
    "mask_attention",
    "mask_and_none",
    "add_loss_mean",
    "regularizers",
    "shared_layer",
    "long_skips",
    "nested",
    "several_inputs",
    "frozen_and_weightless",
    "mixed_bfloat16",
    "float64",
}
ONLY_FOR = {"one_micro_batch": EVERY_WAY_CASES, "recompute": RECOMPUTED_CASES}
# Whatever the schedule, evaluation is a row of forward passes: the other cases show it once.
EVALUATED = {"1f1b"}


class Trained:
    """What is left of a run: history, weights and the optimizer's variables."""

    def __init__(self, trainer, model, fit, evaluates=True):
        history = trainer.fit(
            **fit, batch_size=BATCH_SIZE, epochs=EPOCHS, shuffle=False, verbose=0
        ).history
        self.history = {name: np.asarray(values) for name, values in history.items()}
        self.weights = {v.path: v.numpy() for v in model.weights}
        self.slots = [v.numpy() for v in trainer.optimizer.variables]
        if not evaluates:
            return
        evaluation = {k: fit[k] for k in ("x", "y", "sample_weight") if k in fit}
        self.evaluated = trainer.evaluate(
            **evaluation, batch_size=BATCH_SIZE, verbose=0, return_dict=True
        )
        predicted = trainer.predict(fit["x"], batch_size=BATCH_SIZE, verbose=0)
        self.predicted = keras.tree.flatten(predicted)


def build(case):
    keras.backend.clear_session()
    keras.utils.set_random_seed(1)
    keras.backend.set_floatx(case.floatx)
    keras.config.set_dtype_policy(case.policy)
    return case.model()


@functools.cache
def plain(name):
    case = CASES[name]
    model = build(case)
    model.compile(**case.compile())
    return Trained(model, model, case.fit())


def close(value, expected, tolerance, what):
    value, expected = np.asarray(value, "float64"), np.asarray(expected, "float64")
    assert value.shape == expected.shape, what
    scale = np.max(np.abs(expected), initial=1e-3)
    worst = np.max(np.abs(value - expected), initial=0.0) / scale
    assert worst <= tolerance, f"{what}: {worst:.1e}"


def assert_same(run, reference, tolerance):
    assert run.history.keys() == reference.history.keys()
    for name, expected in reference.history.items():
        close(run.history[name], expected, tolerance, f"history of {name}")
    assert run.weights.keys() == reference.weights.keys()
    for path, expected in reference.weights.items():
        close(run.weights[path], expected, tolerance, path)
    assert len(run.slots) == len(reference.slots)
    for index, expected in enumerate(reference.slots):
        close(run.slots[index], expected, tolerance, f"slot {index}")
    if not hasattr(run, "evaluated"):
        return
    assert run.evaluated.keys() == reference.evaluated.keys()
    for name, expected in reference.evaluated.items():
        close(run.evaluated[name], expected, tolerance, f"evaluated {name}")
    for value, expected in zip(run.predicted, reference.predicted):
        close(value, expected, tolerance, "predicted")


@pytest.mark.parametrize(
    ("name", "how"),
    [
        (name, how)
        for name in CASES
        for how in SPLITS
        if how not in ONLY_FOR or name in ONLY_FOR[how]
    ],
)
def test_same_numbers_as_plain_keras(name, how, devices):
    case, reference = CASES[name], plain(name)
    model = build(case)
    num_devices, options = SPLITS[how]
    if how == "interleaved" and len(model.layers) < 4:
        num_devices, options = 1, {**options, "stages_per_device": 2}
    split = PipelineSplit(model, devices[:num_devices], **options, **case.options)
    split.compile(**case.compile())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        evaluates = how in EVALUATED or name in EVERY_WAY_CASES
        run = Trained(split, model, case.fit(), evaluates)
    assert_same(run, reference, case.tolerance)
    said = [str(w.message) for w in caught if case.warning and case.warning in str(w.message)]
    assert len(said) == (1 if case.warning else 0)
