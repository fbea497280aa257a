"""Limits how many bytes per second background work reads and writes: moves between directories, and rewriting."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

NO_LIMIT: Final = float("inf")


class Allowance:
    """The bytes that may be read or written now, by all that share it."""

    def __init__(self) -> None:
        self._bytes_per_second: Callable[[], float] = lambda: NO_LIMIT
        self._bytes = NO_LIMIT
        self._at_ms = 0

    def limit(self, bytes_per_second: Callable[[], float]) -> None:
        self._bytes_per_second = bytes_per_second

    def grow(self, now_ms: int) -> None:
        """Allows more bytes for the time since the last call, for at most one second."""
        rate, elapsed_ms, self._at_ms = self._bytes_per_second(), max(now_ms - self._at_ms, 0), now_ms
        self._bytes = rate if rate == NO_LIMIT else min(self._bytes + rate * min(elapsed_ms, 1000) / 1000, rate)

    @property
    def is_used_up(self) -> bool:
        """Whether nothing may be read before `grow`."""
        return self._bytes <= 0

    def take(self, size_bytes: int) -> None:
        self._bytes -= size_bytes
