"""The memory that partial requests of all connections may hold together (`queued.max.request.bytes`).

A frame that does not arrive in one piece is counted whole when its length is known, and waits, unread, while there is no room: so
whoever has begun can end, and nobody deadlocks. First come, first served. A frame larger than the limit is let in alone.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol


class Waiter(Protocol):
    """A connection that waits for memory."""

    def on_memory_granted(self) -> None: ...


class RequestMemory:
    """Counts bytes; holds none."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._used_bytes = 0
        self._waiting: deque[tuple[Waiter, int]] = deque()

    @property
    def used_bytes(self) -> int:
        """Bytes of announced frames that are being received."""
        return self._used_bytes

    def reserve(self, waiter: Waiter, size: int) -> bool:
        """Whether `size` bytes are granted now; if not, `waiter.on_memory_granted` is called when they are."""
        if not self._waiting and self._fits(size):
            self._used_bytes += size
            return True
        self._waiting.append((waiter, size))
        return False

    def release(self, size: int) -> None:
        """Give back, and grant what waits in its order."""
        self._used_bytes -= size
        assert self._used_bytes >= 0, "more request memory was given back than was taken"
        self._grant()

    def forget(self, waiter: Waiter) -> None:
        """The waiter's connection is gone. May do nothing."""
        if self._waiting:
            self._waiting = deque(entry for entry in self._waiting if entry[0] is not waiter)
            self._grant()

    def _grant(self) -> None:
        while self._waiting and self._fits(self._waiting[0][1]):
            waiter, wanted = self._waiting.popleft()
            self._used_bytes += wanted
            waiter.on_memory_granted()

    def _fits(self, size: int) -> bool:
        return self._used_bytes == 0 or self._used_bytes + size <= self._limit_bytes
