"""The state of the other callbacks of a run: best values, patience, counters.

Callbacks keep both state and settings in attributes, and nothing marks which is which. An attribute
that has changed since training began is state; others need not be saved. An attribute that the
next run initializes differently is a setting after all, and keeps its new value.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import keras
import numpy as np

from keras_mgpu.checkpoints.plain_values import Arrays, NotPlain, decode, encode
from keras_mgpu.internals.keras_callbacks import PRIVATE_STATE

# These only display something, or are saved in another way.
LEFT_OUT = ("History", "ProgbarLogger", "DistributedCheckpoint", "BackupAndRestore", "CSVLogger")

UNKNOWN = {"unknown": True}
State = dict[str, Any]


class Neighbours:
    """The other callbacks of a run, as they were when it began.

    Args:
        callbacks: All of them, in order.
    """

    def __init__(self, callbacks: Iterable[keras.callbacks.Callback]) -> None:
        self._callbacks = list(callbacks)
        self._before = states_of(self._callbacks, {})

    def state(self, arrays: Arrays) -> dict[str, Any]:
        """Their state, including the history; arrays are added to `arrays`."""
        history = self._history()
        values = {} if history is None else history.history
        return {
            "callbacks": changed(states_of(self._callbacks, arrays), self._before),
            "history": encode_what_can_be(values, "history", arrays),
            "epochs": [] if history is None else list(history.epoch),
        }

    def restore(self, state: Mapping[str, Any], arrays: Mapping[str, Any]) -> None:
        """Lets them continue from what `state` returned in an earlier run."""
        restore(self._callbacks, state["callbacks"], self._before, arrays)
        history = self._history()
        if history is not None:
            values = state["history"].items()
            history.history = {name: decode(value, arrays) for name, value in values}
            history.epoch = list(state["epochs"])

    def _history(self) -> keras.callbacks.History | None:
        for callback in self._callbacks:
            if isinstance(callback, keras.callbacks.History):
                return callback
        return None


def states_of(callbacks: Iterable[keras.callbacks.Callback], arrays: Arrays) -> dict[str, State]:
    """Plain attributes of each callback, by name; arrays are added to `arrays`."""
    return {
        name: encode_what_can_be(
            {key: value for key, value in vars(callback).items() if _may_be_state(callback, key)},
            f"callbacks/{name}",
            arrays,
        )
        for name, callback in _named(callbacks)
    }


def encode_what_can_be(values: Mapping[str, Any], key: str, arrays: Arrays) -> State:
    """The values that JSON can hold; others are left out."""
    found: State = {}
    for name, value in values.items():
        collected: dict[str, np.ndarray] = {}
        try:
            found[name] = encode(value, f"{key}/{name}", collected)
        except NotPlain:
            continue
        arrays.update(collected)
    return found


def changed(now: Mapping[str, State], before: Mapping[str, State]) -> dict[str, State]:
    """The attributes that have changed, each with its value before and now."""
    return {
        name: {
            attribute: {"was": before.get(name, {}).get(attribute, UNKNOWN), "is": value}
            for attribute, value in state.items()
            if before.get(name, {}).get(attribute, UNKNOWN) != value
        }
        for name, state in now.items()
    }


def restore(
    callbacks: Iterable[keras.callbacks.Callback],
    states: Mapping[str, State],
    before: Mapping[str, State],
    arrays: Mapping[str, Any],
) -> None:
    """Gives callbacks the state of those with the same name.

    Args:
        callbacks: The callbacks of this run.
        states: What `changed` returned in an earlier run.
        before: The states that the callbacks of this run began with. An attribute that began with
            another value in the earlier run is a setting that was changed, and is left alone.
        arrays: The arrays of the states.
    """
    for name, callback in _named(callbacks):
        for attribute, value in states.get(name, {}).items():
            begins = before.get(name, {}).get(attribute, UNKNOWN)
            if UNKNOWN in (begins, value["was"]) or begins == value["was"]:
                setattr(callback, attribute, decode(value["is"], arrays))


def _may_be_state(callback: Any, attribute: str) -> bool:
    if attribute.startswith("_"):
        return attribute in PRIVATE_STATE.get(type(callback).__name__, ())
    if attribute == "min_delta" and hasattr(callback, "monitor_op"):
        return False  # Keras flips its sign once per run, when it resolves the mode.
    return attribute not in ("params", "model")


def _named(callbacks: Iterable[Any]) -> Iterable[tuple[str, Any]]:
    counts: dict[str, int] = {}
    for callback in callbacks:
        kind = type(callback).__name__
        if kind not in LEFT_OUT:
            counts[kind] = counts.get(kind, 0) + 1
            yield (kind if counts[kind] == 1 else f"{kind}#{counts[kind]}"), callback
