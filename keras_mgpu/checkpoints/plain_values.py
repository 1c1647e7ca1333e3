"""Values of callbacks as JSON can hold them, with arrays kept apart."""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, MutableMapping
from typing import Any

import numpy as np

Arrays = MutableMapping[str, np.ndarray]


class NotPlain(Exception):
    """The value cannot be represented in JSON."""


def encode(value: Any, key: str, arrays: Arrays) -> Any:
    """Represents a value in JSON; its arrays are added to `arrays`, each under a key.

    A checksum takes the place of an array, so that values can be compared without it.

    Raises:
        NotPlain: If the value is not a number, string or array, or a list, tuple, set or dict of
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
    """The inverse of `encode`."""
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
