"""A hole on its way: left out of all reading at once, made by a worker when what names its end is durable and no reader is left below it.

Guards: from `LogHoles.begin` on nothing that reads the log looks below the hole's end, and those who read there before are known by
the open files that they hold (`readers`); nothing is punched once the segment was cut below the hole's end, or has left its log.

It doesn't know whether the log start is durable: its callers begin a hole only below one that is visible (rule DR1).
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

from lowtide.storage.log.segments.hole import HOLE_HEADER_BYTES, Hole

if TYPE_CHECKING:
    import weakref

    from lowtide.runtime.filesystem import File, FileSystem

_LARGEST_BLOCK: Final = 1 << 16
"""A hole that grows begins with the block in which it ended before, of which it had only a part."""


class PendingHole:
    """A hole that is to be made in the `.log` file at `path`.

    A lock lets the loop give it up while a worker makes it.
    """

    __slots__ = ("_is_wanted", "_lock", "_path", "hole", "is_half_made", "readers", "start")

    def __init__(self, path: str, hole: Hole, start: int, readers: tuple[weakref.ref[File], ...]) -> None:
        """The bytes before `start` are zeros already."""
        self._path = path
        self._lock = threading.Lock()
        self._is_wanted = True
        self.hole = hole
        self.start = start
        self.readers = readers
        self.is_half_made = False
        """The bytes are gone, and the header that says so isn't there yet."""

    def is_read(self) -> bool:
        """Whether a reader from before may still look into it."""
        return any(file() is not None for file in self.readers)

    def make(self, filesystem: FileSystem) -> None:
        """For a worker; done twice, it does the same.

        Errors: OSError, CannotPunchError; after one that passes it is called again.
        """
        with self._lock:
            if not self._is_wanted:
                return
            file = filesystem.open(self._path, write=True)
            begin = max(self.start - self.start % _LARGEST_BLOCK, HOLE_HEADER_BYTES)
            if begin < self.hole.size:
                file.punch(begin, self.hole.size - begin)
                self.is_half_made = True
            file.pwritev([self.hole.encode()], 0)
            self.is_half_made = False

    def stop(self) -> bool:
        """It is not to be made any more, unless half of it is: then it has to be. Returns whether it was given up."""
        with self._lock:
            self._is_wanted = self.is_half_made
            return not self._is_wanted

    def abandon(self) -> None:
        """It is not to be made any more. Waits for a worker that is at it."""
        with self._lock:
            self._is_wanted = False
