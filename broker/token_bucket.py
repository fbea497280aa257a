"""A token bucket: a rate with bursts.

A request is accepted while any token is left, and can take more than there are; the debt must be paid before the next
one. So no request is too large. Source: KIP-599, Kafka's `TokenBucket`.
"""

from __future__ import annotations

from typing import Final

BURST_S: Final = 20
"""The maximum burst in seconds."""


class TokenBucket:
    """A token bucket, initially full."""

    __slots__ = ("_at_ms", "_burst_s", "_tokens")

    def __init__(self, now_ms: int, per_second: float, burst_s: float = BURST_S) -> None:
        self._at_ms = now_ms
        self._burst_s = burst_s
        self._tokens: float = per_second * burst_s

    def take(self, count: int, now_ms: int, per_second: float) -> int:
        """Takes `count` tokens and returns 0, or takes nothing and returns the wait in milliseconds."""
        self._fill(now_ms, per_second)
        if self._tokens <= 0:
            return int((1 - self._tokens) * 1000 / per_second) + 1
        self._tokens -= count
        return 0

    def spend(self, count: int, now_ms: int, per_second: float) -> int:
        """Takes `count` tokens unconditionally; returns the milliseconds until the debt is paid, or 0."""
        self._fill(now_ms, per_second)
        self._tokens -= count
        return 0 if self._tokens >= 0 else int(-self._tokens * 1000 / per_second) + 1

    def _fill(self, now_ms: int, per_second: float) -> None:
        self._tokens = min(self._tokens + (now_ms - self._at_ms) * per_second / 1000, per_second * self._burst_s)
        self._at_ms = now_ms
