"""Room that is kept beside the metadata file, for what must work on a full disk: a start, and a write that deletes.

It is a file of zeros. A start that finds no room has all of it, and keeps half of it again at once, for the start after
a crash. A transaction that deletes keys, as that of a topic does, has half of what is there: what it deletes makes
room, and then it is whole again.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

from lowtide.runtime.filesystem.failures import is_passing

if TYPE_CHECKING:
    from lowtide.runtime.filesystem import FileSystem

RESERVE_SUFFIX: Final = ".reserve"
RESERVE_BYTES: Final = 512 << 10
"""Opening the file and registering takes some ten commits."""


class Reserve:
    """The reserve of the metadata file at a path. `lend` and `restore` are for the thread that writes that file."""

    def __init__(self, filesystem: FileSystem, path: str) -> None:
        self._filesystem = filesystem
        self._place = path + RESERVE_SUFFIX
        self._is_lent = False

    @property
    def is_there(self) -> bool:
        """Whether any is kept."""
        return self._filesystem.exists(self._place)

    def give_up(self) -> None:
        """All of it is free. Errors: OSError."""
        self._filesystem.unlink(self._place)

    def keep(self, size: int) -> None:
        """Keep so many bytes.

        Where there is no room for them, the next start tries again. Errors: OSError that doesn't pass.
        """
        try:
            if not self.is_there or self._filesystem.file_size(self._place) != size:
                # Written, not only made as large: that takes the room on every file system.
                self._filesystem.write_bytes(self._place, bytes(size))
        except OSError as error:
            if not is_passing(error):
                raise
            with contextlib.suppress(OSError):
                self._filesystem.unlink(self._place)

    def lend(self) -> bool:
        """Half of what is there is free now; False if that is so already, or can't be."""
        if self._is_lent or not self.is_there:
            return False
        try:
            self._filesystem.open(self._place, write=True).truncate(self._filesystem.file_size(self._place) // 2)
        except OSError:
            return False
        self._is_lent = True
        return True

    def restore(self) -> None:
        """Keep what was lent again, if there is room now."""
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
