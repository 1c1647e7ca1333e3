"""The state of the other callbacks of a run: best values, patience, counters.

Callbacks keep their state in attributes beside their settings, and nothing says which is which.
What has changed since training began is state; what has not need not be saved. What the next run
sets up otherwise is a setting after all, and stays as it is.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable, Mapping, MutableMapping
from typing import Any

import keras
import numpy as np

from keras_mgpu.internals.keras_callbacks import PRIVATE_STATE

# These show things, or are saved by other means.
LEFT_OUT = ("History", "ProgbarLogger", "DistributedCheckpoint", "BackupAndRestore", "CSVLogger")

UNKNOWN = {"unknown": True}
Arrays = MutableMapping[str, np.ndarray]
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
        """What they have come to, history among it; arrays go to `arrays`."""
        history = self._history()
        values = {} if history is None else history.history
        return {
            "callbacks": changed(states_of(self._callbacks, arrays), self._before),
            "history": encode_what_can_be(values, "history", arrays),
            "epochs": [] if history is None else list(history.epoch),
        }

    def restore(self, state: Mapping[str, Any], arrays: Mapping[str, Any]) -> None:
        """Lets them go on from what `state` said in an earlier run."""
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


class NotPlain(Exception):
    """A value that cannot be written down."""


def states_of(callbacks: Iterable[keras.callbacks.Callback], arrays: Arrays) -> dict[str, State]:
    """Plain attributes of each callback, by a name for the callback; arrays go to `arrays`."""
    return {
        name: encode_what_can_be(
            {key: value for key, value in vars(callback).items() if _may_be_state(callback, key)},
            f"callbacks/{name}",
            arrays,
        )
        for name, callback in _named(callbacks)
    }


def encode_what_can_be(values: Mapping[str, Any], key: str, arrays: Arrays) -> State:
    """Each of the values as JSON can hold it; others are left out."""
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
    """What of `now` is not as it was before, each with what it was and what it is."""
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
    """Gives callbacks the state of those with the same names.

    Args:
        callbacks: Those of this run.
        states: What `changed` said of an earlier one.
        before: What the callbacks of this run began with. What began otherwise in the earlier run
            was set up otherwise since, and is left alone.
        arrays: The arrays of the states.
    """
    for name, callback in _named(callbacks):
        for attribute, value in states.get(name, {}).items():
            begins = before.get(name, {}).get(attribute, UNKNOWN)
            if UNKNOWN in (begins, value["was"]) or begins == value["was"]:
                setattr(callback, attribute, decode(value["is"], arrays))


def encode(value: Any, key: str, arrays: Arrays) -> Any:
    """A value as JSON can hold it; arrays are left in `arrays`, each under a key.

    An array's checksum stands in its place, so that two values can be compared without it.

    Raises:
        NotPlain: If the value is anything but numbers, texts, arrays, and lists, sets and dicts of
            them.
    """
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"float": repr(value)}
    if isinstance(value, np.ndarray) and value.dtype != object:
        arrays[key] = value
        return {"array": [key, zlib.crc32(np.ascontiguousarray(value).tobytes())]}
    if isinstance(value, (list, tuple)):
        items = [encode(each, f"{key}/{index}", arrays) for index, each in enumerate(value)]
        return {type(value).__name__: items} if type(value) in (list, tuple) else _refuse(value)
    if type(value) is set:
        return {"set": sorted((encode(each, key, arrays) for each in value), key=repr)}
    if isinstance(value, dict):
        return {
            "dict": [
                [encode(name, f"{key}/keys", arrays), encode(each, f"{key}/{name}", arrays)]
                for name, each in value.items()
            ]
        }
    return _refuse(value)


def decode(plain: Any, arrays: Mapping[str, Any]) -> Any:
    """What `encode` was given."""
    if not isinstance(plain, dict):
        return plain
    ((kind, content),) = plain.items()
    if kind == "float":
        return float(content)
    if kind == "array":
        return np.array(arrays[content[0]])
    if kind == "dict":
        return {decode(name, arrays): decode(each, arrays) for name, each in content}
    items = [decode(each, arrays) for each in content]
    return {"tuple": tuple, "set": set, "list": list}[kind](items)


def _refuse(value: Any) -> Any:
    raise NotPlain(type(value).__name__)


def _may_be_state(callback: Any, attribute: str) -> bool:
    if attribute.startswith("_"):
        return attribute in PRIVATE_STATE.get(type(callback).__name__, ())
    if attribute == "min_delta" and hasattr(callback, "monitor_op"):
        return False  # Keras turns its sign once in each run, when it learns the direction.
    return attribute not in ("params", "model")


def _named(callbacks: Iterable[Any]) -> Iterable[tuple[str, Any]]:
    counts: dict[str, int] = {}
    for callback in callbacks:
        kind = type(callback).__name__
        if kind not in LEFT_OUT:
            counts[kind] = counts.get(kind, 0) + 1
            yield (kind if counts[kind] == 1 else f"{kind}#{counts[kind]}"), callback
