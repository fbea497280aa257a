"""A mapping that is copied when it first changes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Draft(Generic[K, V]):
    """The next state of a mapping, which stays the same object while nothing changes."""

    __slots__ = ("_copy", "_old")

    def __init__(self, old: Mapping[K, V]) -> None:
        self._old = old
        self._copy: dict[K, V] | None = None

    @property
    def now(self) -> Mapping[K, V]:
        """The mapping with all changes so far."""
        return self._old if self._copy is None else self._copy

    def edit(self) -> dict[K, V]:
        if self._copy is None:
            self._copy = dict(self._old)
        return self._copy

    def put(self, key: K, value: V | None) -> bool:
        """Sets a value, or removes the key for None. Returns whether there is a value."""
        if value is None:
            self.edit().pop(key, None)
        else:
            self.edit()[key] = value
        return value is not None
