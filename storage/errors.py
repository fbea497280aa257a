"""Exceptions for a broken disk, or a broken file on it.

Expected outcomes (a full disk, an offset out of range) are `ErrorCode`s in results, never exceptions.
"""

from __future__ import annotations

import contextlib
import errno
from typing import TYPE_CHECKING

from lowtide.runtime.filesystem.failures import DISK_FULL, OUT_OF_RESOURCE, FailureKind, failure_kind

if TYPE_CHECKING:
    from lowtide.runtime.filesystem import FileSystem

__all__ = [
    "DISK_FULL",
    "PASSING",
    "DamagedSegmentError",
    "FailureKind",
    "RefusedDirectoryError",
    "StorageError",
    "failure_kind",
    "is_passing",
    "remove_file",
    "storage_error",
]

PASSING = DISK_FULL | OUT_OF_RESOURCE
"""Errors that may pass and are no fault of the disk. None takes a log directory offline: the operation is refused or
repeated.
"""


def is_passing(error: OSError | StorageError) -> bool:
    """Returns whether an error may pass: the disk is full, or the call lacked a descriptor, memory or a thread."""
    number = error.error_number if isinstance(error, StorageError) else error.errno
    return number in PASSING


class StorageError(Exception):
    """A file or folder of a log directory failed, or has invalid content. The directory goes offline.

    `path` names the file or folder, `reason` says in one sentence what is wrong with it.
    """

    def __init__(self, path: str, reason: str, *, error_number: int = 0) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason
        self.error_number = error_number

    @property
    def kind(self) -> FailureKind:
        return failure_kind(self.error_number)

    @property
    def is_disk_full(self) -> bool:
        return self.kind is FailureKind.NO_ROOM

    @property
    def is_passing(self) -> bool:
        """Whether the disk isn't at fault and the operation may succeed later (`PASSING`)."""
        return self.error_number in PASSING


class RefusedDirectoryError(StorageError):
    """A log directory of another broker, or in use by another process. The start is always refused."""


class DamagedSegmentError(StorageError):
    """Bytes in the middle of a segment are no longer the record batch that was written.

    Only this partition is affected: its requests get KAFKA_STORAGE_ERROR and the directory stays online.
    """


def remove_file(filesystem: FileSystem, path: str) -> None:
    """Removes a file, if it is there. Errors: StorageError."""
    try:
        with contextlib.suppress(FileNotFoundError):
            filesystem.unlink(path)
    except OSError as error:
        raise storage_error(path, error) from error


def stopping_error(path: str) -> OSError:
    """Returns the error for what a part of the log directory at `path` doesn't begin or finish because of a stop."""
    return OSError(errno.ESHUTDOWN, "the broker is stopping", path)


def storage_error(path: str, error: OSError) -> StorageError:
    """Returns a StorageError for a failed system call on `path`."""
    return StorageError(path, f"{error.strerror or error} (errno {error.errno})", error_number=error.errno or 0)
