"""One group commit: the barriers that a committer carries out together, with an outcome for each.

Guards the meaning of a failed sync: the round tries nothing more, and whatever error the sync reported, the outcome is
that of a broken disk. The committer decides when and where a round runs.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import msgspec

from lowtide.runtime.filesystem import FailureKind, FileSystem, Syncable, failure_kind, is_passing

# An open for a sync failed: neither the disk nor the synced file is at fault.
NO_DESCRIPTOR_ERRNOS: Final = frozenset({errno.EMFILE, errno.ENFILE})


class Barrier(msgspec.Struct, frozen=True, kw_only=True):
    """What must become durable: sync the files, then rename in order (source, target), then sync the directories.

    The barrier keeps its open files open until the answer.
    """

    files: tuple[Syncable, ...] = ()
    renames: tuple[tuple[str, str], ...] = ()
    directories: tuple[str, ...] = ()


class NoDescriptorError(Exception):
    """No descriptor was free for a file that must be opened for its sync. The round continues from here later."""


class Round:
    """Several barriers carried out as one, with an outcome for each."""

    def __init__(self, filesystem: FileSystem, barriers: Sequence[Barrier]) -> None:
        self._filesystem = filesystem
        self._barriers = barriers
        self._files: dict[Syncable, OSError | None] = {}
        self._renamed = False
        self._directories: dict[str, OSError | None] = {}
        self._last_error: OSError | None = None
        self.outcomes: list[OSError | None] = [None] * len(barriers)
        self.failure: OSError | None = None

    @property
    def syncs(self) -> int:
        return len(self._files) + len(self._directories)

    def run(self) -> bool:
        """Fills `outcomes`, and sets `failure` if the disk can't be trusted any more.

        Returns False to be run again later.
        """
        try:
            self._sync_files()
            if self.failure is None:
                self._rename()
                self._sync_directories()
        except NoDescriptorError:
            return False
        if self.failure is not None:
            self.outcomes = [outcome or self.failure for outcome in self.outcomes]
        return True

    def give_up(self) -> None:
        """Fails everything, because the round can't be run again."""
        assert self._last_error is not None
        self.failure = sync_error(self._last_error)
        self.outcomes = [outcome or self.failure for outcome in self.outcomes]

    def _sync_files(self) -> None:
        # A quiet broker mostly has rounds of one barrier, so nothing here may cost more than the syncs that it saves.
        synced = self._files
        for index, barrier in enumerate(self._barriers):
            for file in barrier.files:
                if file not in synced:
                    synced[file] = self._attempt(file.sync)
                self.outcomes[index] = self.outcomes[index] or synced[file]
                if self.failure is not None:
                    return

    def _rename(self) -> None:
        if self._renamed:
            return
        self._renamed = True
        for index, barrier in enumerate(self._barriers):
            if self.outcomes[index] is None:
                try:
                    for source, target in barrier.renames:
                        self._filesystem.rename(source, target)
                except OSError as error:
                    self.outcomes[index] = error

    def _sync_directories(self) -> None:
        synced = self._directories
        for index, barrier in enumerate(self._barriers):
            if self.outcomes[index] is not None:
                continue
            for directory in barrier.directories:
                if directory not in synced:
                    synced[directory] = self._attempt(partial(self._filesystem.sync_directory, directory))
                self.outcomes[index] = self.outcomes[index] or synced[directory]
                if self.failure is not None:
                    return

    def _attempt(self, sync: Callable[[], None]) -> OSError | None:
        try:
            sync()
        except OSError as error:
            if error.errno in NO_DESCRIPTOR_ERRNOS:
                self._last_error = error
                raise NoDescriptorError from error
            if failure_kind(error.errno) is FailureKind.GONE:
                return error
            self.failure = sync_error(error)
            return self.failure
        return None


def sync_error(error: OSError) -> OSError:
    """Returns the error of a failed sync, never one that looks temporary: a repeated sync proves nothing."""
    if not is_passing(error):
        return error
    failed = OSError(
        errno.EIO,
        f"a sync failed, and what the disk holds is unknown: {error.strerror} (errno {error.errno})",
        error.filename,
    )
    failed.__cause__ = error
    return failed
