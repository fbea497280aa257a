"""Answers to deletes that wait until what they delete has given its room back, within bounds.

A client that deletes behind a producer is thereby no faster than its disk: while a sync takes long, what is deleted and
takes room still stays below `HELD_BYTES` for each log. Nearly all deletes leave less and are answered when they are
durable.
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
"""A delete that leaves so much in the segment of the log start is answered when that is a hole."""

LARGE_BYTES: Final = 64 << 20
"""One that leaves so much isn't: it would wait for the disk, however little of it is used."""

HELD_MS: Final = 1000
"""So long at most: a hole may lack a descriptor."""


class _Answer(msgspec.Struct, eq=False):
    logs: Sequence[Log]
    until_ms: int
    give: Callable[[], None]


class HeldAnswers:
    """Those of a broker. Used from the event loop only."""

    def __init__(self, clock: Clock, is_freeing: Callable[[Log], bool]) -> None:
        """`is_freeing` says whether a log is about to give room back."""
        self._clock = clock
        self._is_freeing = is_freeing
        self._held: list[_Answer] = []

    def hold(self, logs: Sequence[Log], give: Callable[[], None]) -> None:
        """Calls `give` when none of the logs holds it back any more; at once if none does.

        Their starts are durable and visible.
        """
        holding = [log for log in logs if self._holds(log) and LogHoles(log).unfreed_bytes < LARGE_BYTES]
        if holding:
            self._held.append(_Answer(holding, self._clock.monotonic_ms() + HELD_MS, give))
        else:
            give()

    def release(self) -> None:
        """Gives the answers that nothing holds back any more.

        To be called when a hole is made, and on the order of each 50 ms.
        """
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
