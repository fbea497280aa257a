"""Disk space reserved beside the metadata file for what must work on a full disk: a start, and a deleting write.

It is a file of zeros. A start that finds no room releases all of it, and reserves half again at once for a start after
a crash. A transaction that deletes keys, such as a topic's, releases half of it; the deletion frees space, and then the
reserve is restored.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

from lowtide.runtime.filesystem.failures import is_passing

if TYPE_CHECKING:
    from lowtide.runtime.filesystem import FileSystem

RESERVE_SUFFIX: Final = ".reserve"
RESERVE_BYTES: Final = 512 << 10
"""Opening the file and registering take some ten commits."""


class Reserve:
    """The reserve of the metadata file at a path. `lend` and `restore` run on the thread that writes that file."""

    def __init__(self, filesystem: FileSystem, path: str) -> None:
        self._filesystem = filesystem
        self._place = path + RESERVE_SUFFIX
        self._is_lent = False

    @property
    def is_there(self) -> bool:
        return self._filesystem.exists(self._place)

    def give_up(self) -> None:
        """Releases all of it. Errors: OSError."""
        self._filesystem.unlink(self._place)

    def keep(self, size: int) -> None:
        """Reserves this many bytes.

        Without room for them the next start tries again. Errors: OSError that isn't temporary.
        """
        try:
            if not self.is_there or self._filesystem.file_size(self._place) != size:
                # Written, not only extended: that allocates the space on every file system.
                self._filesystem.write_bytes(self._place, bytes(size))
        except OSError as error:
            if not is_passing(error):
                raise
            with contextlib.suppress(OSError):
                self._filesystem.unlink(self._place)

    def lend(self) -> bool:
        """Releases half of it. Returns False if that is done already, or fails."""
        if self._is_lent or not self.is_there:
            return False
        try:
            self._filesystem.open(self._place, write=True).truncate(self._filesystem.file_size(self._place) // 2)
        except OSError:
            return False
        self._is_lent = True
        return True

    def restore(self) -> None:
        """Restores the full reserve after `lend`, if there is room."""
        if not self._is_lent:
            return
        with contextlib.suppress(OSError):
            kept = self._filesystem.file_size(self._place)
            file = self._filesystem.open(self._place, write=True)
            try:
                file.pwritev([bytes(RESERVE_BYTES - kept)], kept)
            except OSError:
                file.truncate(kept)
            else:
                self._is_lent = False
