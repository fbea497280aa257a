"""What an error of the file system means: the only place that decides which errors are a broken disk.

Three kinds are no fault of the disk. They have a remedy that is not a new disk:

| kind          | errors                        | the caller                                                             |
|---------------|-------------------------------|------------------------------------------------------------------------|
| `NO_ROOM`     | ENOSPC, EDQUOT                | keeps what it had, answers that it could not, tries again later        |
| `NO_RESOURCE` | EMFILE, ENFILE, ENOMEM, EAGAIN| the same; descriptors, memory or threads are lacking, not room         |
| `GONE`        | ENOENT, ENOTDIR, EBADF        | asks whether the log is still here: files of a removed log are missing |

Everything else is `BROKEN`: the log directory goes offline.

A failed `sync` is the exception: what it left behind is unknown whatever its errno (`port`), so the committer that met
it stops, also for ENOSPC, which thin volumes and NFS report there. Errors of *opening* a folder for its sync are
classified like all others.

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
    """What an error number says of the disk."""

    NO_ROOM = "the disk is full"
    """action: nothing is acknowledged; the step is repeated. transition: deletes or the operator make room."""
    NO_RESOURCE = "the process or the machine lacks descriptors, memory or threads"
    """action: as `NO_ROOM`. transition: files or connections are closed."""
    GONE = "the file or folder is not there"
    """action: none if its log was removed meanwhile, else as `BROKEN`."""
    BROKEN = "the disk failed"
    """action: the log directory goes offline. transition: none before the next start."""


def failure_kind(error_number: int | None) -> FailureKind:
    """The kind of an `errno`; `BROKEN` for 0 and None, which name no error number."""
    if error_number in DISK_FULL:
        return FailureKind.NO_ROOM
    if error_number in OUT_OF_RESOURCE:
        return FailureKind.NO_RESOURCE
    if error_number in TARGET_GONE:
        return FailureKind.GONE
    return FailureKind.BROKEN


def is_passing(error: OSError) -> bool:
    """Whether room or a resource was lacking: the disk works, and the same step may succeed later."""
    return failure_kind(error.errno) in {FailureKind.NO_ROOM, FailureKind.NO_RESOURCE}
