"""A rate with bursts: so many units a second, and what was not used for a while at once.

A request is let in while any unit is left, and may take more than there are: the bucket is in debt then, and no request
is let in until that is paid. So a request is never too large to be let in at all. Source: KIP-599, Kafka's
`TokenBucket`.
"""

from __future__ import annotations

from typing import Final

BURST_S: Final = 20
"""What is saved up at most, in seconds."""


class TokenBucket:
    """Lets in so many units a second. It begins full."""

    __slots__ = ("_at_ms", "_burst_s", "_tokens")

    def __init__(self, now_ms: int, per_second: float, burst_s: float = BURST_S) -> None:
        self._at_ms = now_ms
        self._burst_s = burst_s
        self._tokens: float = per_second * burst_s

    def take(self, count: int, now_ms: int, per_second: float) -> int:
        """Takes `count` units and returns 0, or takes nothing and returns after how many milliseconds to ask again."""
        self._fill(now_ms, per_second)
        if self._tokens <= 0:
            return int((1 - self._tokens) * 1000 / per_second) + 1
        self._tokens -= count
        return 0

    def spend(self, count: int, now_ms: int, per_second: float) -> int:
        """Takes `count` units in any case; returns after how many milliseconds the debt is paid, 0 where there is none."""
        self._fill(now_ms, per_second)
        self._tokens -= count
        return 0 if self._tokens >= 0 else int(-self._tokens * 1000 / per_second) + 1

    def _fill(self, now_ms: int, per_second: float) -> None:
        self._tokens = min(self._tokens + (now_ms - self._at_ms) * per_second / 1000, per_second * self._burst_s)
        self._at_ms = now_ms
