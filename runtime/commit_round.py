"""What is to be durable, and one group commit: the barriers that a committer carries out together, with an outcome for each.

It guards what a failed sync means: the round that meets one tries nothing more, and whatever error the sync reported, the outcome is one of
a broken disk. Who runs a round, and where, is the committer's.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import msgspec

from lowtide.runtime.filesystem import FailureKind, FileSystem, Syncable, failure_kind, is_passing

# An open that a sync needs has failed: neither the disk nor the thing to be synced is at fault.
NO_DESCRIPTOR_ERRNOS: Final = frozenset({errno.EMFILE, errno.ENFILE})


class Barrier(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be durable: sync the files, then rename in order (source, target), then sync the directories.

    The open ones of the files stay open until the answer, for the barrier holds them.
    """

    files: tuple[Syncable, ...] = ()
    renames: tuple[tuple[str, str], ...] = ()
    directories: tuple[str, ...] = ()


class NoDescriptorError(Exception):
    """There was no descriptor for a file that a sync must open.

    Nothing was tried: the round continues from here later.
    """


class Round:
    """One group commit: several barriers carried out as one, with an outcome for each."""

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
        """Files and directories that were synced."""
        return len(self._files) + len(self._directories)

    def run(self) -> bool:
        """Fill `outcomes`; `failure` is set if the disk can be trusted no more.

        Returns False where it has to be run again, later.
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
        """It isn't run again, though it has to be: all of it has failed."""
        assert self._last_error is not None
        self.failure = sync_error(self._last_error)
        self.outcomes = [outcome or self.failure for outcome in self.outcomes]

    def _sync_files(self) -> None:
        # A round of one barrier is the common case of a quiet broker, so nothing here costs more than the syncs it
        # saves.
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
    """The error of a failed sync.

    One without room or resources must not look like an error that passes: trying again proves nothing.
    """
    if not is_passing(error):
        return error
    failed = OSError(
        errno.EIO,
        f"a sync failed, and what the disk holds is unknown: {error.strerror} (errno {error.errno})",
        error.filename,
    )
    failed.__cause__ = error
    return failed
