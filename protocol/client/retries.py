"""When to try again: decisions over error codes, attempts and moments. Nothing here waits, draws or reads a clock.

What is random is passed in as `share`, drawn evenly from -1 to 1, so that clients that failed together don't return
together. Sources: Kafka's ExponentialBackoff, ClusterConnectionStates.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from lowtide.protocol.errors import ErrorCode

JITTER: Final = 0.2
"""Rests differ by up to this share either way. Kafka: ExponentialBackoff."""

SILENT_MS: Final = 1000
"""After so long without an answer to a question that any broker can answer, the next broker is asked too. Metadata of 10,000 partitions
takes a broker a tenth of that."""

SILENCE_MS: Final = 30_000
"""For so long a broker that did not answer in time is asked after the others."""

_CODES: Final = frozenset(ErrorCode)


def is_retriable(code: int) -> bool:
    """Whether the same request may be sent again. A code that isn't in our table is final."""
    return code in _CODES and ErrorCode(code).retriable


class Backoff(NamedTuple):
    """How rests grow: from `first_ms`, twice as long each time, up to `max_ms`."""

    first_ms: int
    max_ms: int

    def rest_ms(self, failures: int, share: float = 0.0) -> int:
        """How long to rest after so many failures in a row (from 1)."""
        doubled = self.first_ms << min(failures - 1, 30)
        return int(min(doubled, max(self.first_ms, self.max_ms)) * (1 + JITTER * share))


class Reachability:
    """What one address has done lately: failed to be reached, or kept a question waiting."""

    __slots__ = ("_backoff", "_failures", "_not_before_ms", "_silent_until_ms")

    def __init__(self, backoff: Backoff) -> None:
        self._backoff = backoff
        self._failures = 0
        self._not_before_ms = 0
        self._silent_until_ms = 0

    def on_failure(self, now_ms: int, share: float = 0.0) -> None:
        """An attempt to reach it failed."""
        self._failures += 1
        self._not_before_ms = now_ms + self._backoff.rest_ms(self._failures, share)

    def on_success(self) -> None:
        """It was reached."""
        self._failures = self._not_before_ms = 0

    def wait_ms(self, now_ms: int) -> int:
        """How long the next attempt has to wait; 0 for not at all."""
        return max(0, self._not_before_ms - now_ms)

    def on_silence(self, now_ms: int) -> None:
        """It takes longer to answer than others should wait for."""
        self._silent_until_ms = now_ms + SILENCE_MS

    def on_answer(self) -> None:
        """It answers."""
        self._silent_until_ms = 0

    def was_silent(self, now_ms: int) -> bool:
        """Whether it let a question wait a short time ago, and has not answered since."""
        return now_ms < self._silent_until_ms


def rest_after(
    code: int | None, *, failures: int, now_ms: int, deadline_ms: int, backoff: Backoff, share: float
) -> int | None:
    """How long to rest after the failure of number `failures` (from 1) before another attempt; None: none follows.

    `code` is the broker's error code, or None for an answer that didn't come. No attempt follows a code that is final, and none begins at
    the deadline or after it. A rest takes a millisecond at least.
    """
    if code is not None and not is_retriable(code):
        return None
    rest_ms = max(backoff.rest_ms(failures, share), 1)
    return rest_ms if now_ms + rest_ms < deadline_ms else None
