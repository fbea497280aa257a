"""Counts the ids of groups or transactions, because clients may make a broker keep as many as its limits allow.

Limits: `lowtide.groups.max` and `lowtide.transactional.ids.max`.
"""

from __future__ import annotations

from typing import Final, TypeVar

CHARACTERS_PER_ID: Final = 256
"""A longer id counts once more for each further 256 characters: an id may have 32 KiB."""

State = TypeVar("State")


class CountedIds(dict[str, State]):
    """Maps the ids of groups or transactions to their states, and counts the ids; a long id counts as several.

    Entries come and go through the four methods below only.
    """

    __slots__ = ("count",)

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __setitem__(self, name: str, state: State) -> None:
        if name not in self:
            self.count += _weight(name)
        super().__setitem__(name, state)

    def __delitem__(self, name: str) -> None:
        super().__delitem__(name)
        self.count -= _weight(name)

    def discard(self, name: str) -> None:
        """Removes an id if it is here."""
        if name in self:
            del self[name]

    def clear(self) -> None:
        """Removes all ids."""
        super().clear()
        self.count = 0


def _weight(name: str) -> int:
    return max(-(-len(name) // CHARACTERS_PER_ID), 1)
