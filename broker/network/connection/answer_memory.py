"""The memory and files held by answers that clients do not read (`lowtide.answers.unread.max.bytes`).

A connection stops executing requests while its client does not read, so it holds few answers. Thousands of such
connections still hold thousands of answers. When they hold more than the limit together, connections are closed: first
the one whose client has read nothing for the longest time. A client that reads, however slowly, is closed after those
that do not.

Bytes in files and in the system's socket buffers do not count. But an answer from files keeps them open, and a broker
may open only so many. When a read finds no free file, connections of clients that have read nothing for a second are
closed in the same order.

Pure: counts bytes, but holds none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

import msgspec

from lowtide.storage.log.segments.open_files import OpenFiles

REASON: Final = (
    "its client doesn't read its answers, and those of all connections have reached lowtide.answers.unread.max.bytes"
)

FILES_REASON: Final = (
    "its client doesn't read its answers, and they hold files open that others need: the limit of open files is reached"
)

SILENT_MS: Final = 1_000
"""After this time without a read, a client loses the files of its answers to others."""


class Writer(Protocol):
    """A connection with answers for a client."""

    @property
    def unread_bytes(self) -> int:
        """The bytes that the socket has not taken."""
        ...

    @property
    def files_held(self) -> int:
        """An upper bound of the files that they hold open."""
        ...

    def give_up(self, reason: str) -> None:
        """Closes the connection."""
        ...


class _Holding(msgspec.Struct):
    """The unread bytes of a writer at the last look, and since when its client has read nothing."""

    unread_bytes: int
    since_ms: int


class AnswerMemory:
    """Bounds the memory of answers that clients do not read, over all connections."""

    def __init__(self, limit_bytes: int, now_ms: Callable[[], int]) -> None:
        self._limit_bytes = limit_bytes
        self._now_ms = now_ms
        self._holding: dict[Writer, _Holding] = {}
        self._used_bytes = 0

    @property
    def used_bytes(self) -> int:
        """The unread bytes of all writers at the last look at each."""
        return self._used_bytes

    def note(self, writer: Writer, *, has_read: bool = False) -> None:
        """Counts a writer's unread bytes again, after they have changed. Closes connections above the limit.

        `has_read`: the socket has taken all earlier bytes, so the client reads, even if as many bytes wait again.
        """
        now_ms = self._now_ms()
        self._look(writer, now_ms)
        if has_read and (holding := self._holding.get(writer)) is not None:
            holding.since_ms = now_ms
        if self._used_bytes > self._limit_bytes:
            self._make_room()

    def forget(self, writer: Writer) -> None:
        """Forgets a writer that has nothing left to send, or whose connection has ended."""
        holding = self._holding.pop(writer, None)
        if holding is not None:
            self._used_bytes -= holding.unread_bytes

    def _look(self, writer: Writer, now_ms: int) -> None:
        unread_bytes = writer.unread_bytes
        holding = self._holding.get(writer)
        if unread_bytes == 0:
            self.forget(writer)
        elif holding is None:
            self._holding[writer] = _Holding(unread_bytes, now_ms)
            self._used_bytes += unread_bytes
        else:
            if unread_bytes < holding.unread_bytes:
                holding.since_ms = now_ms
            self._used_bytes += unread_bytes - holding.unread_bytes
            holding.unread_bytes = unread_bytes

    def free_files(self, count: int) -> None:
        """Closes connections of clients silent for `SILENT_MS`, until at least `count` files are free."""
        freed, latest_ms = 0, self._now_ms() - SILENT_MS
        for writer in self._in_turn():
            held = writer.files_held
            if freed >= count or self._holding[writer].since_ms > latest_ms:
                return
            if held:
                freed += held
                self.forget(writer)
                writer.give_up(FILES_REASON)

    def _make_room(self) -> None:
        for writer in self._in_turn():
            if self._used_bytes <= self._limit_bytes:
                return
            self.forget(writer)
            writer.give_up(REASON)

    def _in_turn(self) -> list[Writer]:
        """Returns the writers: those with the longest silent clients first, and the largest first among equals."""
        now_ms = self._now_ms()
        for writer in list(self._holding):
            self._look(writer, now_ms)
        return sorted(
            self._holding, key=lambda writer: (self._holding[writer].since_ms, -self._holding[writer].unread_bytes)
        )


class AnswerFiles:
    """Closes connections whose answers keep others from reading. Used from the event loop only."""

    def __init__(self, files: OpenFiles, answers: AnswerMemory) -> None:
        self._files = files
        self._answers = answers

    def on_tick(self) -> None:
        """Frees files if a read has found none. Called about once a second; the client repeats the failed read."""
        if self._files.take_lacking():
            self._answers.free_files(self._files.held_max)
