"""How many lines a second clients may cause: so many in all, and so many each, so that one of them does not hide the others.

Half of the lines of a second are for clients that have had none in it, so that a few clients together don't hide the others either.

Pure: time is passed in.
"""

from __future__ import annotations

from typing import Final

import msgspec

KEYS_NAMED: Final = 20
"""Of those whose lines were left out so many are counted by name."""


class Suppressed(msgspec.Struct, frozen=True):
    """Lines that were left out: all, and of those that are named. `by_key` may have fewer, never more."""

    count: int
    by_key: dict[str, int]


class LineBound:
    """Counts lines by the second. A key is what causes them: a principal at an address."""

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
        """Whether one more line may be written; if not, it is counted."""
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

    def take_suppressed(self, now_ms: int) -> Suppressed | None:
        """What was left out in seconds that are over, once; None if nothing was."""
        if not self._suppressed or now_ms // 1000 == self._second:
            return None
        taken = Suppressed(self._suppressed, self._suppressed_by_key)
        self._suppressed, self._suppressed_by_key = 0, {}
        return taken
