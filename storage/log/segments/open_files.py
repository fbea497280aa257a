"""Which segments have their file open: a bounded number, whatever the number of partitions.

A file is opened when its segment is read or written. Where the bound is reached, another one is closed for it: one that
wasn't used since it was last considered (the clock algorithm, which costs an append nothing), and that is not held
elsewhere. Answers that wait for their client and barriers that wait for the disk hold files; the descriptor of such a
file closes when the last of them lets go.

Guards: reads never raise the number of open files above the bound: where answers hold nearly all, the next read fails
with EMFILE, which the client repeats; connections whose clients don't read are closed meanwhile
(`broker/network/answer_files.py`). Writes may exceed the bound, by `held_max`, because a client that doesn't take its
answers must not stop producers.

It doesn't count the files of indexes, snapshots and checkpoints, which are open for the time of one call.

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
"""Where nothing is known of the process's limit."""

_LOOKS: Final = 64
"""Segments that are considered for one that is opened."""


class OpenSegment(Protocol):
    """What is asked of a segment."""

    path: str
    size: int
    used: bool
    """Set by each read; cleared here."""

    def try_close(self) -> bool:
        """Closes the file unless others hold it, too. Returns whether it did."""
        ...

    def forget_file(self) -> None:
        """Lets go of the file, also where it is held elsewhere."""
        ...


class OpenFiles:
    """The open files of all segments, bounded. Used from the event loop only."""

    __slots__ = ("_flushed", "_held", "_lacking", "_open", "files_max", "held_max")

    def __init__(self, files_max: int = FILES_MAX) -> None:
        """At most `files_max` files are open, but for `held_max` that answers and barriers hold."""
        assert files_max >= 1
        self.files_max = files_max
        self.held_max = max(files_max // 4, 1)
        self._flushed = 0
        """Open files that are held by flushes under way."""
        self._lacking = False
        self._open: dict[OpenSegment, int] = {}
        """Segments with an open file, and their size when they were last considered; those that are considered next come first."""
        self._held: list[weakref.ref[File]] = []
        """Files that their segments have let go of and that were held by others then."""

    def __len__(self) -> int:
        """How many files are open."""
        return len(self._open) + self._held_count()

    def make_room(self, segment: OpenSegment, *, for_writing: bool) -> None:
        """The file of `segment` is about to be opened. Errors: OSError (EMFILE) where others hold too many."""
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
        """The file of `segment` was opened."""
        self._open[segment] = segment.size

    def closed(self, segment: OpenSegment, file: weakref.ref[File]) -> None:
        """The segment has let go of its file; others may hold it."""
        self._open.pop(segment, None)
        if file() is not None:
            self._held.append(file)

    def take_lacking(self) -> bool:
        """Whether a file could not be opened since this was asked last, because others are held."""
        lacking, self._lacking = self._lacking, False
        return lacking

    @property
    def may_flush(self) -> bool:
        """Whether flushes under way hold so few that another one may begin: reads need the others."""
        return self._flushed < self.held_max

    def flush_begins(self, held: int) -> None:
        """A flush holds so many open files until it ends."""
        self._flushed += held

    def flush_ends(self, held: int) -> None:
        """It has let go of them."""
        self._flushed -= held

    def _close_one(self) -> bool:
        """Closes a file that was not used lately, or else of any that is not held elsewhere.

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
