"""The exceptions that stand for a broken disk or a broken file on it.

An expected outcome (a full disk, an offset out of range) is an `ErrorCode` in a result and never one of these.
"""

from __future__ import annotations

import errno

DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
"""The errors of a disk without room."""


class StorageError(Exception):
    """A file or folder of a log directory failed, or holds what it must not hold. The directory goes offline.

    `path` names the file or folder, `reason` says in one sentence what is wrong with it.
    """

    def __init__(self, path: str, reason: str, *, error_number: int = 0) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason
        self.error_number = error_number

    @property
    def is_disk_full(self) -> bool:
        """Whether there was no room, which is no fault of the disk and may pass."""
        return self.error_number in DISK_FULL


class RefusedDirectoryError(StorageError):
    """A log directory isn't for this broker, or somebody else uses it. No fault of the disk: the start is refused, whatever else works."""


class DamagedSegmentError(StorageError):
    """Bytes in the middle of a segment aren't a record batch, though they were one when they were written.

    Only this partition is hurt: its requests are answered KAFKA_STORAGE_ERROR and the directory stays online.
    """


def storage_error(path: str, error: OSError) -> StorageError:
    """The StorageError for a failed system call on `path`."""
    return StorageError(path, f"{error.strerror or error} (errno {error.errno})", error_number=error.errno or 0)
