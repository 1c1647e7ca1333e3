"""The promise: a split model trains to plain Keras's numbers, in every case users have."""

import functools
import warnings

import keras
import numpy as np
import pytest
from transparency import (
    BATCH_SIZE,
    CASES,
    GATHERED,
    LOSSES,
    NETWORKS,
    OPTIMIZERS,
    VARIANTS,
)
from versions import KERAS

from keras_mgpu import PipelineSplit

# Number of devices, and options. Batches of 8 are cut evenly by 4, unevenly by 3 and 5. The last
# batch has 3 samples: fewer than there are micro-batches, but for `gpipe`.
SPLITS = {
    "gpipe": (2, {"schedule": "gpipe", "micro_batches": 3}),
    "1f1b": (3, {"schedule": "1f1b", "micro_batches": 5}),
    "interleaved": (2, {"schedule": "interleaved", "micro_batches": 4, "stages_per_device": 2}),
    "zero_bubble": (2, {"schedule": "zero_bubble", "micro_batches": 4}),
    "recompute": (3, {"schedule": "1f1b", "micro_batches": 4, "recompute": True}),
    "one_micro_batch": (3, {"micro_batches": 1}),
}
PIPELINED = ("gpipe", "1f1b", "interleaved", "zero_bubble", "recompute")
# Which cases run under which schedules: all those that the case could tell apart.
RUNS = (
    # A stage's graph is cut into forward and backward ops, which every schedule cuts and connects
    # in another way.
    (NETWORKS, PIPELINED),
    # A loss that needs all outputs changes the order of whatever schedule was chosen.
    (GATHERED, PIPELINED),
    # These graphs are cut like those of the networks that they are variants of.
    (VARIANTS, ("1f1b",)),
    # The end of the pipeline is handed one micro-batch after another. When does not matter.
    (LOSSES, ("1f1b",)),
    # The optimizer is called once per batch, after the last op of any schedule.
    (OPTIMIZERS, ("1f1b",)),
    # A batch that stays whole is trained by other code: one case of each kind.
    (
        (
            "dense",
            "mask_lstm",
            "two_outputs",
            "add_loss_sum",
            "tied_embedding",
            "sparse_gradients",
            "mixed_float16",
            "coupled_loss",
            "metrics",
        ),
        ("one_micro_batch",),
    ),
)
# `evaluate` and `predict` are rows of forward passes: each case shows them under one schedule, and
# these under all.
FORWARD_UNDER_ALL = {"dense", "mask_lstm", "two_outputs", "coupled_loss"}
EPOCHS = 2


class Trained:
    """What a run leaves: history, weights and the optimizer's variables."""

    def __init__(self, trainer, model, fit):
        history = trainer.fit(
            **fit, batch_size=BATCH_SIZE, epochs=EPOCHS, shuffle=False, verbose=0
        ).history
        self.history = {name: np.asarray(values) for name, values in history.items()}
        self.weights = {v.path: v.numpy() for v in model.weights}
        self.slots = [v.numpy() for v in trainer.optimizer.variables]
        self.evaluated = self.predicted = None

    def evaluate(self, trainer, fit):
        data = {k: fit[k] for k in ("x", "y", "sample_weight") if k in fit}
        options = {"batch_size": BATCH_SIZE, "verbose": 0, "return_dict": True}
        self.evaluated = trainer.evaluate(**data, **options)

    def predict(self, trainer, fit):
        predicted = trainer.predict(fit["x"], batch_size=BATCH_SIZE, verbose=0)
        self.predicted = keras.tree.flatten(predicted)


def run(name, trainer, model, evaluates, predicts):
    case = CASES[name]
    trainer.compile(**case.compile())
    trained = Trained(trainer, model, case.fit())
    if evaluates:
        trained.evaluate(trainer, case.fit())
    if predicts:
        trained.predict(trainer, case.fit())
    return trained


def build(case):
    keras.backend.clear_session()
    keras.utils.set_random_seed(1)
    keras.backend.set_floatx(case.floatx)
    keras.config.set_dtype_policy(case.policy)
    return case.model()


@functools.cache
def plain(name):
    """Plain Keras, trained once for all schedules: a worker is given them one after another."""
    model = build(CASES[name])
    return run(name, model, model, evaluates=is_evaluated(name), predicts=is_predicted(name))


def is_evaluated(name, how="1f1b"):
    """An optimizer has no part in evaluation."""
    return name in FORWARD_UNDER_ALL or (how == "1f1b" and name not in OPTIMIZERS)


def is_predicted(name, how="1f1b"):
    """Neither has a loss in prediction."""
    return name in FORWARD_UNDER_ALL or (how == "1f1b" and name in NETWORKS)


def close(value, expected, tolerance, what):
    value, expected = np.asarray(value, "float64"), np.asarray(expected, "float64")
    assert value.shape == expected.shape, what
    scale = np.max(np.abs(expected), initial=1e-3)
    worst = np.max(np.abs(value - expected), initial=0.0) / scale
    assert worst <= tolerance, f"{what}: {worst:.1e}"


def all_close(values, expected, tolerance, what):
    assert values.keys() == expected.keys()
    for name in expected:
        close(values[name], expected[name], tolerance, f"{what} {name}")


def assert_same(found, expected, tolerance):
    all_close(found.history, expected.history, tolerance, "history of")
    all_close(found.weights, expected.weights, tolerance, "weight")
    assert len(found.slots) == len(expected.slots)
    for index, slot in enumerate(expected.slots):
        close(found.slots[index], slot, tolerance, f"slot {index}")
    if found.evaluated is not None:
        all_close(found.evaluated, expected.evaluated, tolerance, "evaluated")
    if found.predicted is not None:
        assert len(found.predicted) == len(expected.predicted)
        for value, reference in zip(found.predicted, expected.predicted):
            close(value, reference, tolerance, "predicted")


def assert_warned(caught, expected):
    """Once if something is expected, and of nothing else: a warning costs the user speed."""
    messages = [
        str(warning.message)
        for warning in caught
        if not issubclass(warning.category, DeprecationWarning)  # Keras's and TensorFlow's.
    ]
    assert len(messages) == (0 if expected is None else 1), messages
    assert all(expected in message for message in messages)


def split_up(model, how, devices):
    num_devices, options = SPLITS[how]
    if how == "interleaved" and len(model.layers) < 4:
        num_devices = 1
    return PipelineSplit(model, devices[:num_devices], **options)


# By case, so that those who share a run of plain Keras stand together.
ORDER = {name: place for place, name in enumerate(CASES)}
PAIRS = [(name, how) for cases, splits in RUNS for name in cases for how in splits]


@pytest.mark.parametrize(("name", "how"), sorted(PAIRS, key=lambda pair: ORDER[pair[0]]))
def test_same_numbers_as_plain_keras(name, how, devices):
    if name == "float64" and KERAS < (3, 14):
        pytest.skip("Keras before 3.14 cannot train this model in float64 itself")
    expected = plain(name)
    case = CASES[name]
    model = build(case)
    split = split_up(model, how, devices)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = run(name, split, model, is_evaluated(name, how), is_predicted(name, how))
    assert_same(found, expected, case.tolerance)
    assert_warned(caught, case.warning)
