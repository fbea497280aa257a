"""Decides when to retry, from error codes, attempts and times. No waiting, randomness or clock.

Randomness is passed in as `share`, uniform from -1 to 1, so that clients do not retry in lockstep. Sources: Kafka's
ExponentialBackoff, ClusterConnectionStates.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from lowtide.protocol.errors import ErrorCode

JITTER: Final = 0.2
"""The random variation of a backoff. Kafka: ExponentialBackoff."""

SILENT_MS: Final = 1000
"""The time without a response after which another broker is asked too. Metadata of 10,000 partitions take a tenth of
it."""

SILENCE_MS: Final = 30_000
"""The time for which a broker that did not respond is asked last."""

_CODES: Final = frozenset(ErrorCode)


def is_retriable(code: int) -> bool:
    """Returns whether the same request can be retried. An unknown code is final."""
    return code in _CODES and ErrorCode(code).retriable


class Backoff(NamedTuple):
    """Exponential backoff: from `first_ms`, doubled each time, up to `max_ms`."""

    first_ms: int
    max_ms: int

    def rest_ms(self, failures: int, share: float = 0.0) -> int:
        """Returns the backoff after this number of consecutive failures (from 1)."""
        doubled = self.first_ms << min(failures - 1, 30)
        return int(min(doubled, max(self.first_ms, self.max_ms)) * (1 + JITTER * share))


class Reachability:
    """The recent failures and timeouts of one address."""

    __slots__ = ("_backoff", "_failures", "_not_before_ms", "_silent_until_ms")

    def __init__(self, backoff: Backoff) -> None:
        self._backoff = backoff
        self._failures = 0
        self._not_before_ms = 0
        self._silent_until_ms = 0

    def on_failure(self, now_ms: int, share: float = 0.0) -> None:
        self._failures += 1
        self._not_before_ms = now_ms + self._backoff.rest_ms(self._failures, share)

    def on_success(self) -> None:
        self._failures = self._not_before_ms = 0

    def wait_ms(self, now_ms: int) -> int:
        """Returns the time until the next attempt; 0 for now."""
        return max(0, self._not_before_ms - now_ms)

    def on_silence(self, now_ms: int) -> None:
        """Records that it did not respond in time."""
        self._silent_until_ms = now_ms + SILENCE_MS

    def on_answer(self) -> None:
        self._silent_until_ms = 0

    def was_silent(self, now_ms: int) -> bool:
        """Returns whether it did not respond recently."""
        return now_ms < self._silent_until_ms


def rest_after(
    code: int | None, *, failures: int, now_ms: int, deadline_ms: int, backoff: Backoff, share: float
) -> int | None:
    """Returns the backoff before the next attempt; None if there is none.

    `failures` counts from 1. `code` is the broker's error code, or None without a response. No attempt follows a final
    code, or starts at or after the deadline. The backoff is at least a millisecond.
    """
    if code is not None and not is_retriable(code):
        return None
    rest_ms = max(backoff.rest_ms(failures, share), 1)
    return rest_ms if now_ms + rest_ms < deadline_ms else None
