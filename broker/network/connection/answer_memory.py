"""The memory and files held by answers that clients do not read (`lowtide.answers.unread.max.bytes`).

A connection executes nothing more while its client doesn't take the answers that are there, so each holds a few;
thousands of connections
hold as many as they are. When all of them hold more than the limit, connections are closed: first the one whose client
has read nothing for
longest. A client that reads is behind those that don't, however slow it is.

Bytes that wait in files don't count, nor what the system's socket buffers hold. But such an answer holds its files
open, and a broker may
open so many: where they are lacking, connections are closed in the same order, of clients that have read nothing for a
second.

Pure: counts bytes and holds none, and asks who holds them.
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
    """The unread bytes of a writer when it was asked last, and since when its client has read nothing."""

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
        """The unread bytes, as far as they were reported."""
        return self._used_bytes

    def note(self, writer: Writer, *, has_read: bool = False) -> None:
        """What a writer has to send has changed, and the socket doesn't take it all; or it does now.

        `has_read`: the socket has taken what it was given before, so that the client reads, though there may be as much
        again by now.
        """
        now_ms = self._now_ms()
        self._look(writer, now_ms)
        if has_read and (holding := self._holding.get(writer)) is not None:
            holding.since_ms = now_ms
        if self._used_bytes > self._limit_bytes:
            self._make_room()

    def forget(self, writer: Writer) -> None:
        """Forgets a writer whose connection is gone, or that has nothing left to send."""
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
        """Returns the writers whose clients have been silent longest first; of equal ones, the largest first."""
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
        """To be called about once a second.

        A read that failed meanwhile is repeated by its client, and finds room then.
        """
        if self._files.take_lacking():
            self._answers.free_files(self._files.held_max)
