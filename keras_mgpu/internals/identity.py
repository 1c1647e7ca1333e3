"""Dictionaries and sets that compare objects with `is` instead of `==`.

Keras variables and tensors compare by value, so they cannot be keys of ordinary dictionaries. Keys
are kept alive, so that the identity of a deleted object cannot be reused by another one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, MutableMapping, MutableSet, Sequence
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class IdentityMap(MutableMapping[K, V], Generic[K, V]):
    """A dictionary whose keys are compared with `is`.

    >>> first, second = [1], [1]
    >>> names = IdentityMap([(first, "first"), (second, "second")])
    >>> names[first], len(names), [1] in names
    ('first', 2, False)
    """

    def __init__(self, items: Iterable[tuple[K, V]] = ()) -> None:
        self._items: dict[int, tuple[K, V]] = {}
        for key, value in items:
            self[key] = value

    def __getitem__(self, key: K) -> V:
        return self._items[id(key)][1]

    def __setitem__(self, key: K, value: V) -> None:
        self._items[id(key)] = key, value

    def __delitem__(self, key: K) -> None:
        del self._items[id(key)]

    def __contains__(self, key: object) -> bool:
        return id(key) in self._items

    def __iter__(self) -> Iterator[K]:
        return (key for key, _ in self._items.values())

    def __len__(self) -> int:
        return len(self._items)


class IdentitySet(MutableSet[K], Generic[K]):
    """A set whose members are compared with `is`, in the order in which they were added.

    >>> first, second = [1], [1]
    >>> len(IdentitySet([first, second, first]))
    2
    """

    def __init__(self, items: Iterable[K] = ()) -> None:
        self._items: dict[int, K] = {}
        self.update(items)

    def add(self, value: K) -> None:
        self._items.setdefault(id(value), value)

    def update(self, items: Iterable[K]) -> None:
        for item in items:
            self.add(item)

    def discard(self, value: K) -> None:
        self._items.pop(id(value), None)

    def __contains__(self, value: object) -> bool:
        return id(value) in self._items

    def __iter__(self) -> Iterator[K]:
        return iter(self._items.values())

    def __len__(self) -> int:
        return len(self._items)


def are_same(first: Sequence[object], second: Sequence[object]) -> bool:
    """Whether two sequences hold the same objects in the same order.

    >>> shared = [1]
    >>> are_same([shared], [shared]), are_same([shared], [[1]])
    (True, False)
    """
    return len(first) == len(second) and all(a is b for a, b in zip(first, second))


def unique(items: Iterable[K]) -> list[K]:
    """Each object once, in the order of first appearance.

    >>> shared = [1]
    >>> unique([shared, [2], shared])
    [[1], [2]]
    """
    return list(IdentitySet(items))
