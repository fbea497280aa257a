"""Keeps values for the most recent keys."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Recent(Generic[K, V]):
    """At most `most` values by key. Beyond that, the least recently used one is dropped."""

    __slots__ = ("_by_key", "_most")

    def __init__(self, most: int) -> None:
        self._by_key: dict[K, V] = {}
        self._most = most

    def __len__(self) -> int:
        return len(self._by_key)

    def latest(self) -> Iterator[tuple[K, V]]:
        """Yields all keys and values, the most recently used first."""
        return reversed(self._by_key.items())

    def of(self, key: K, make: Callable[[], V]) -> V:
        """Returns the value of a key, or makes it, as the most recently used one."""
        value = self._by_key.pop(key, None)
        if value is None:
            value = make()
            if len(self._by_key) >= self._most:
                del self._by_key[next(iter(self._by_key))]
        self._by_key[key] = value
        return value
