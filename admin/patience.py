"""How long a call may take, and how long it rests between attempts. Times are passed in."""

from __future__ import annotations

from lowtide.admin.settings import ClientSettings
from lowtide.runtime.clock import Clock
from lowtide.runtime.random import Random

WAITING_TOLD_MS = 3000
"""After so long a person wonders whether a call still does anything."""

JITTER = 0.2
"""Backoffs differ by up to this share either way, so that clients that failed together don't return together. Kafka: ExponentialBackoff."""


class Deadline:
    """The moment by which a call has to end. `timeout_ms` is what it was given at first, for sentences."""

    __slots__ = ("_at_ms", "_begun_ms", "_clock", "_told", "timeout_ms")

    def __init__(self, clock: Clock, timeout_ms: int) -> None:
        self._clock = clock
        self._begun_ms = clock.monotonic_ms()
        self._at_ms = self._begun_ms + timeout_ms
        self.timeout_ms = timeout_ms
        self._told = False

    def is_to_be_told(self) -> bool:
        """Whether it is time to say that the call goes on; once."""
        if self._told or self._clock.monotonic_ms() - self._begun_ms < WAITING_TOLD_MS:
            return False
        self._told = True
        return True

    def remaining_ms(self) -> int:
        """Never negative."""
        return max(0, self._at_ms - self._clock.monotonic_ms())

    def earlier(self, by_ms: int) -> Deadline:
        """A deadline `by_ms` before this one, of which sentences tell the same timeout."""
        made = Deadline(self._clock, 0)
        made._at_ms, made._begun_ms, made.timeout_ms = self._at_ms - by_ms, self._begun_ms, self.timeout_ms
        return made


def retry_backoff_ms(attempt: int, settings: ClientSettings, random: Random) -> int:
    """How long to rest after the failure of attempt number `attempt` (from 1)."""
    return _backoff_ms(attempt, settings.retry_backoff_ms, settings.retry_backoff_max_ms, random)


def reconnect_backoff_ms(failures: int, settings: ClientSettings, random: Random) -> int:
    """How long to rest after so many failures in a row to reach one broker (from 1)."""
    return _backoff_ms(failures, settings.reconnect_backoff_ms, settings.reconnect_backoff_max_ms, random)


def _backoff_ms(attempt: int, first_ms: int, max_ms: int, random: Random) -> int:
    """Doubles each time, up to `max_ms`."""
    doubled = first_ms << min(attempt - 1, 30)
    return int(min(doubled, max(first_ms, max_ms)) * random.uniform(1 - JITTER, 1 + JITTER))
