"""Keeps what lives long out of the way of Python's collector of reference cycles.

A full collection goes through every container that there is, in one go, while all threads stand still: ten thousand partitions have some
thirty containers each. Partitions stay, and hold no cycles: they are freed without the collector when they go. So each time many have been
made, the collector is configured to ignore all that exists by then. What it would have found is collected just before, so only
what becomes part of a cycle later stays in memory for good: some kilobytes for each connection that was open.

It works on the whole process, so it is for a process that is a broker and nothing else.
"""

from __future__ import annotations

import gc
from typing import Final

MADE_PER_FREEZE: Final = 1_000
"""Partitions. A collection of what belongs to so many takes five to ten milliseconds."""


class LongLived:
    """Counts objects that stay."""

    __slots__ = ("_made",)

    def __init__(self) -> None:
        self._made = 0

    def note_made(self) -> None:
        """A partition was made, or opened."""
        self._made += 1
        if self._made >= MADE_PER_FREEZE:
            self.freeze()

    def freeze(self) -> None:
        """Collect what is garbage, and have later collections pass over all else that there is now."""
        self._made = 0
        gc.collect()
        gc.freeze()
