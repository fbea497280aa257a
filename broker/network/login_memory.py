"""The memory that frames hold which arrive before a login, of all connections together. Counts bytes and holds none."""

from __future__ import annotations

LOGIN_MEMORY_BYTES = 8 * 1024 * 1024
"""Sixteen frames of the largest size that is allowed by default (`sasl.server.max.receive.size`); those of passwords need none of it."""


class LoginMemory:
    """Grants memory, and never lets anyone wait for it: a client that gets none connects again."""

    def __init__(self, limit_bytes: int) -> None:
        self._free_bytes = limit_bytes

    def take(self, size: int) -> bool:
        """Whether `size` bytes are granted."""
        if size > self._free_bytes:
            return False
        self._free_bytes -= size
        return True

    def give_back(self, size: int) -> None:
        """Bytes that were granted are free again."""
        self._free_bytes += size
