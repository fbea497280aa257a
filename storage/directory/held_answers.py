"""Holds answers to large deletes back, within bounds, until the room of the deleted records is free.

So a client that deletes behind a producer is no faster than its disk: while a sync takes long, deleted bytes that still
take room stay below `HELD_BYTES` for each log. Nearly all deletes leave less and are answered when durable.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from lowtide.storage.log.log_holes import LogHoles

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lowtide.runtime.clock import Clock
    from lowtide.storage.log.log import Log

HELD_BYTES: Final = 2 << 20
"""A delete that leaves this much in the segment of the log start is answered when that has become a hole."""

LARGE_BYTES: Final = 64 << 20
"""A delete that leaves this much isn't held: it would wait for the disk, however idle."""

HELD_MS: Final = 1000
"""The longest time an answer is held: a hole may lack a descriptor."""


class _HeldAnswer(msgspec.Struct, eq=False):
    logs: Sequence[Log]
    until_ms: int
    give: Callable[[], None]


class HeldAnswers:
    """The held answers of a broker. Used from the event loop only."""

    def __init__(self, clock: Clock, is_freeing: Callable[[Log], bool]) -> None:
        """`is_freeing` returns whether room of a log is about to be freed."""
        self._clock = clock
        self._is_freeing = is_freeing
        self._held: list[_HeldAnswer] = []

    def hold(self, logs: Sequence[Log], give: Callable[[], None]) -> None:
        """Calls `give` when no log holds it back any more; at once if none does.

        The log starts are already durable and visible.
        """
        holding = [log for log in logs if self._holds(log) and LogHoles(log).unfreed_bytes < LARGE_BYTES]
        if holding:
            self._held.append(_HeldAnswer(holding, self._clock.monotonic_ms() + HELD_MS, give))
        else:
            give()

    def release(self) -> None:
        """Gives the answers that no log holds back any more. Called when a hole is made, and about every 50 ms."""
        if not self._held:
            return
        now_ms = self._clock.monotonic_ms()
        held, self._held = self._held, []
        for answer in held:
            if now_ms < answer.until_ms and any(map(self._holds, answer.logs)):
                self._held.append(answer)
            else:
                answer.give()

    def _holds(self, log: Log) -> bool:
        return LogHoles(log).unfreed_bytes >= HELD_BYTES and self._is_freeing(log)
