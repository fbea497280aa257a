"""Counts the ids of groups and transactions for `lowtide.groups.max` and `lowtide.transactional.ids.max`."""

from __future__ import annotations

from typing import Final, TypeVar

CHARACTERS_PER_ID: Final = 256
"""An id counts once for every 256 characters, because it may have 32 KiB."""

State = TypeVar("State")


class CountedIds(dict[str, State]):
    """Maps the ids of groups or transactions to their states, and sums their weights: a long id counts as several.

    Callers add and remove entries only by the four methods below.
    """

    __slots__ = ("weight",)

    def __init__(self) -> None:
        super().__init__()
        self.weight = 0

    def __setitem__(self, name: str, state: State) -> None:
        if name not in self:
            self.weight += _weight(name)
        super().__setitem__(name, state)

    def __delitem__(self, name: str) -> None:
        super().__delitem__(name)
        self.weight -= _weight(name)

    def discard(self, name: str) -> None:
        """Removes an id if it is here."""
        if name in self:
            del self[name]

    def clear(self) -> None:
        """Removes all ids."""
        super().clear()
        self.weight = 0


def _weight(name: str) -> int:
    return max(-(-len(name) // CHARACTERS_PER_ID), 1)
