"""The deadline of a call."""

from __future__ import annotations

from lowtide.runtime.clock import Clock

LOG_AFTER_MS = 3000
"""After so long the client logs that a call continues."""


class Deadline:
    """The time by which a call ends. `timeout_ms` is the original timeout, for messages."""

    __slots__ = ("_at_ms", "_begun_ms", "_clock", "_is_logged", "timeout_ms")

    def __init__(self, clock: Clock, timeout_ms: int) -> None:
        self._clock = clock
        self._begun_ms = clock.monotonic_ms()
        self._at_ms = self._begun_ms + timeout_ms
        self.timeout_ms = timeout_ms
        self._is_logged = False

    def log_is_due(self) -> bool:
        """Returns once whether it is time to log that the call continues."""
        if self._is_logged or self._clock.monotonic_ms() - self._begun_ms < LOG_AFTER_MS:
            return False
        self._is_logged = True
        return True

    def remaining_ms(self) -> int:
        """Returns the remaining time, never less than 0."""
        return max(0, self._at_ms - self._clock.monotonic_ms())

    def earlier(self, by_ms: int) -> Deadline:
        """Returns a deadline `by_ms` before this one, with the same timeout in messages."""
        made = Deadline(self._clock, 0)
        made._at_ms, made._begun_ms, made.timeout_ms = self._at_ms - by_ms, self._begun_ms, self.timeout_ms
        return made
