"""Limits the lines per second that clients cause, in total and each.

Half of the lines of a second are reserved for clients without any in that second, so that a few clients together can't
hide the others. Pure: time is passed in.
"""

from __future__ import annotations

from typing import Final

import msgspec

KEYS_NAMED: Final = 20
"""The maximum number of clients whose omitted lines are counted by name."""


class SuppressedLines(msgspec.Struct, frozen=True):
    """The number of omitted lines, in total and by client. `by_key` may count too few, never too many."""

    count: int
    by_key: dict[str, int]


class LineBound:
    """Counts lines per second. The key is what caused a line: a principal at an address."""

    __slots__ = (
        "_admitted",
        "_by_key",
        "_per_key",
        "_per_second",
        "_repeated",
        "_second",
        "_suppressed",
        "_suppressed_by_key",
    )

    def __init__(self, per_second: int, per_key: int) -> None:
        self._per_second = per_second
        self._per_key = per_key
        self._second = -1
        self._admitted = self._repeated = 0
        self._by_key: dict[str, int] = {}
        self._suppressed = 0
        self._suppressed_by_key: dict[str, int] = {}

    def admit(self, key: str, now_ms: int) -> bool:
        """Returns whether one more line may be written, and counts it as written or omitted."""
        second = now_ms // 1000
        if second != self._second:
            self._second, self._admitted, self._repeated = second, 0, 0
            self._by_key.clear()
        used = self._by_key.get(key, 0)
        has_room = not used or (used < self._per_key and self._repeated < self._per_second // 2)
        if self._admitted < self._per_second and has_room:
            self._admitted += 1
            self._repeated += used > 0
            self._by_key[key] = used + 1
            return True
        self._suppressed += 1
        left_out = self._suppressed_by_key
        if key in left_out or len(left_out) < KEYS_NAMED:
            left_out[key] = left_out.get(key, 0) + 1
        return False

    def take_suppressed(self, now_ms: int) -> SuppressedLines | None:
        """Returns and clears the lines omitted in past seconds, or None."""
        if not self._suppressed or now_ms // 1000 == self._second:
            return None
        taken = SuppressedLines(self._suppressed, self._suppressed_by_key)
        self._suppressed, self._suppressed_by_key = 0, {}
        return taken
