"""Bounds the number of segments with an open file, however many partitions there are.

A file is opened when its segment is read or written. At the bound another one is closed: one that wasn't used since it
was last considered (the clock algorithm, which costs an append nothing) and isn't held elsewhere. Answers that wait for
their client and barriers that wait for the disk hold files; the descriptor of such a file closes when the last of them
releases it.

Guards: reads never exceed the bound: if answers hold nearly all files, the next read fails with EMFILE, which the
client repeats; connections whose clients don't read are closed meanwhile
(`broker/network/connection/answer_memory.py`). Writes may exceed it by `held_max`, because a client that doesn't read
its answers must not stop producers.

Files of indexes, snapshots and checkpoints aren't counted; they are open during one call.

Sources: PostgreSQL's `fd.c` (virtual file descriptors); "A Paging Experiment with the Multics System" (Corbato, 1968)
for the clock.
"""

from __future__ import annotations

import errno
import weakref
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from lowtide.runtime.filesystem import File

FILES_MAX: Final = 1 << 16
"""If the process's limit is unknown."""

_LOOKS: Final = 64
"""Segments considered for each one that is opened."""


class OpenSegment(Protocol):
    """The part of a segment that is used here."""

    path: str
    size: int
    used: bool
    """Set by each read; cleared here."""

    def try_close(self) -> bool:
        """Closes the file unless others hold it, too. Returns whether it did."""
        ...

    def forget_file(self) -> None:
        """Releases the file, even if it is held elsewhere."""
        ...


class OpenFiles:
    """The open files of all segments, bounded. Used from the event loop only."""

    __slots__ = ("_flushed", "_held", "_lacking", "_open", "files_max", "held_max")

    def __init__(self, files_max: int = FILES_MAX) -> None:
        """At most `files_max` files are open, plus `held_max` that answers and barriers hold."""
        assert files_max >= 1
        self.files_max = files_max
        self.held_max = max(files_max // 4, 1)
        self._flushed = 0
        """Open files held by flushes under way."""
        self._lacking = False
        self._open: dict[OpenSegment, int] = {}
        """Segments with an open file, and their size when last considered; the next to consider come first."""
        self._held: list[weakref.ref[File]] = []
        """Files that their segments have released while others held them."""

    def __len__(self) -> int:
        """How many files are open."""
        return len(self._open) + self._held_count()

    def make_room(self, segment: OpenSegment, *, for_writing: bool) -> None:
        """Closes a file if necessary, before that of `segment` is opened.

        Errors: OSError (EMFILE) if others hold too many.
        """
        if len(self._open) + len(self._held) < self.files_max or len(self) < self.files_max:
            return
        if self._close_one():
            return
        if not for_writing or self._held_count() >= self.held_max:
            self._lacking = True
            raise OSError(
                errno.EMFILE, f"all {self.files_max} files that may be open are held by answers under way", segment.path
            )
        next(iter(self._open)).forget_file()

    def opened(self, segment: OpenSegment) -> None:
        """Notes that the file of `segment` was opened."""
        self._open[segment] = segment.size

    def closed(self, segment: OpenSegment, file: weakref.ref[File]) -> None:
        """Notes that a segment has released its file; others may hold it."""
        self._open.pop(segment, None)
        if file() is not None:
            self._held.append(file)

    def take_lacking(self) -> bool:
        """Returns whether a file could not be opened since the last call, because others are held."""
        lacking, self._lacking = self._lacking, False
        return lacking

    @property
    def may_flush(self) -> bool:
        """Whether flushes under way hold so few files that another one may begin: reads need the others."""
        return self._flushed < self.held_max

    def flush_begins(self, held: int) -> None:
        """Counts files that a flush holds until it ends."""
        self._flushed += held

    def flush_ends(self, held: int) -> None:
        """Ends a flush."""
        self._flushed -= held

    def _close_one(self) -> bool:
        """Closes a file that was not used lately, or else any that is not held elsewhere.

        Returns whether one was closed.
        """
        used: list[OpenSegment] = []
        for _ in range(min(_LOOKS, len(self._open))):
            segment = next(iter(self._open))
            size = self._open.pop(segment)
            if not segment.used and segment.size == size and segment.try_close():
                return True
            if segment.used or segment.size != size:
                used.append(segment)
            segment.used = False
            self._open[segment] = segment.size
        for segment in used:
            if segment.try_close():
                del self._open[segment]
                return True
        return False

    def _held_count(self) -> int:
        if self._held:
            self._held = [file for file in self._held if file() is not None]
        return len(self._held)
