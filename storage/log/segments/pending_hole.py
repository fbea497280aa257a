"""A hole that is not made yet: its bytes are left out of reading at once, and a worker punches them later.

That is when its end is noted durably and no reader is left below it. Guards: from `LogHoles.begin` on nothing that
reads the log looks below the hole's end, and earlier readers are known by the files that they hold (`readers`); nothing
is punched once the segment was cut below the hole's end, or has left its log.

Callers begin a hole only below a visible, and so durable, log start (rule DR1).
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

from lowtide.storage.log.segments.hole import HOLE_HEADER_BYTES, Hole

if TYPE_CHECKING:
    import weakref

    from lowtide.runtime.filesystem import File, FileSystem

_LARGEST_BLOCK: Final = 1 << 16
"""A hole that grows begins with the block in which it ended, of which it had only a part."""


class PendingHole:
    """A hole to be made in the `.log` file at `path`. A lock lets the loop give it up while a worker makes it."""

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
        """Whether the bytes are gone and the header is still missing."""

    def is_read(self) -> bool:
        """Returns whether an earlier reader may still look into it."""
        return any(file() is not None for file in self.readers)

    def make(self, filesystem: FileSystem) -> None:
        """Makes the hole, in a worker; it may be repeated.

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
        """Gives the hole up, unless it is half made. Returns whether it was given up."""
        with self._lock:
            self._is_wanted = self.is_half_made
            return not self._is_wanted

    def abandon(self) -> None:
        """Gives the hole up. Waits for a worker that is making it."""
        with self._lock:
            self._is_wanted = False
