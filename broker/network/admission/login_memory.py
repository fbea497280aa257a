"""Counts the memory of frames that arrive before a login, of all connections together.

Guards: no client can keep the memory from others. At the limit, connections of the visitor with the most are closed,
the largest frames first and the oldest of these. A login whose bytes arrive ends long before that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

import msgspec

LOGIN_MEMORY_BYTES: Final = 8 * 1024 * 1024
"""Sixteen frames of the default maximum size (`sasl.server.max.receive.size`). Password logins need none of it."""

LATE_MS: Final = 1_000
"""A frame that has not arrived after this time may also be closed for a larger one."""


class LoginFrame(Protocol):
    """A connection that receives a frame before its login."""

    def close(self, reason: str) -> None:
        """Closes without another response."""
        ...


class _Held(msgspec.Struct, frozen=True):
    size: int
    since_ms: int


class _Visitor(msgspec.Struct):
    """The frames of one visitor by the bit length of their size, the oldest first."""

    held_bytes: int = 0
    frames: dict[int, dict[LoginFrame, _Held]] = {}


class LoginMemory:
    """Grants memory without waits: a connection that must give way is closed, and its client reconnects."""

    def __init__(self, limit_bytes: int, now_ms: Callable[[], int]) -> None:
        self.free_bytes = limit_bytes
        self._now_ms = now_ms
        self._visitors: dict[str, _Visitor] = {}

    def take(self, frame: LoginFrame, visitor: str, size: int) -> bool:
        """Returns whether a frame gets `size` bytes, its first. May close other connections for it."""
        while size > self.free_bytes:
            found = self._victim(visitor, size)
            if found is None:
                return False
            victim, of_visitor = found
            self.give_back(victim, of_visitor)
            victim.close("a large frame before its login makes room for others")
        held = self._visitors.setdefault(visitor, _Visitor())
        held.frames.setdefault(size.bit_length(), {})[frame] = _Held(size, self._now_ms())
        held.held_bytes += size
        self.free_bytes -= size
        return True

    def give_back(self, frame: LoginFrame, visitor: str) -> None:
        """Frees the bytes of a frame. A second call does nothing."""
        held = self._visitors.get(visitor)
        if held is None:
            return
        for magnitude, frames in held.frames.items():
            found = frames.pop(frame, None)
            if found is None:
                continue
            held.held_bytes -= found.size
            self.free_bytes += found.size
            if not frames:
                del held.frames[magnitude]
            if not held.held_bytes:
                del self._visitors[visitor]
            return

    def _victim(self, visitor: str, size: int) -> tuple[LoginFrame, str] | None:
        """Returns the frame to close for one of `size` bytes, and its visitor; None if there is none."""
        if not self._visitors:
            return None
        name, largest = max(self._visitors.items(), key=lambda each: each[1].held_bytes)
        own = self._visitors.get(visitor)
        magnitude = max(largest.frames)
        is_greedy = name != visitor and largest.held_bytes > size + (0 if own is None else own.held_bytes)
        if is_greedy or magnitude >= size.bit_length():
            return next(iter(largest.frames[magnitude])), name
        oldest = min(
            (next(iter(frames.items())) for frames in largest.frames.values()), key=lambda each: each[1].since_ms
        )
        return (oldest[0], name) if self._now_ms() - oldest[1].since_ms >= LATE_MS else None
