"""Classifies file system errors: the only place that decides which ones mean a broken disk.

Three kinds are no fault of the disk and have another remedy:

| kind          | errors                         | the caller                                                         |
|---------------|--------------------------------|--------------------------------------------------------------------|
| `NO_ROOM`     | ENOSPC, EDQUOT                 | keeps what it had, reports the failure, tries again later          |
| `NO_RESOURCE` | EMFILE, ENFILE, ENOMEM, EAGAIN | the same; descriptors, memory or threads are lacking, not space    |
| `GONE`        | ENOENT, ENOTDIR, EBADF         | asks whether the log still exists: its files may have been removed |

Everything else is `BROKEN`: the log directory goes offline. A failed `sync` is an exception: its effect is unknown
whatever its errno (`port`), so the committer stops, even for ENOSPC, which thin volumes and NFS report there. Errors of
*opening* a folder for its sync are classified normally.

Sources: open(2), write(2), rename(2), fsync(2).
"""

from __future__ import annotations

import errno
from enum import Enum
from typing import Final

DISK_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
OUT_OF_RESOURCE: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN})
TARGET_GONE: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EBADF})


class FailureKind(Enum):
    """What an error number means for the disk."""

    NO_ROOM = "the disk is full"
    """action: nothing is acknowledged; the step is repeated. transition: deletes or the operator free space."""
    NO_RESOURCE = "the process or the machine lacks descriptors, memory or threads"
    """action: as `NO_ROOM`. transition: files or connections are closed."""
    GONE = "the file or folder is not there"
    """action: none if its log was removed meanwhile, else as `BROKEN`."""
    BROKEN = "the disk failed"
    """action: the log directory goes offline. transition: none before the next start."""


def failure_kind(error_number: int | None) -> FailureKind:
    """Returns the kind of an `errno`; `BROKEN` for 0 and None."""
    if error_number in DISK_FULL:
        return FailureKind.NO_ROOM
    if error_number in OUT_OF_RESOURCE:
        return FailureKind.NO_RESOURCE
    if error_number in TARGET_GONE:
        return FailureKind.GONE
    return FailureKind.BROKEN


def is_passing(error: OSError) -> bool:
    """Returns whether space or a resource was lacking: the disk works, and the step may succeed later."""
    return failure_kind(error.errno) in {FailureKind.NO_ROOM, FailureKind.NO_RESOURCE}
