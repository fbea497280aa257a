"""How long a call may take."""

from __future__ import annotations

from lowtide.runtime.clock import Clock

WAITING_TOLD_MS = 3000
"""After so long a person wonders whether a call still does anything."""


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
        """Whether it is time to log that the call continues; once."""
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
