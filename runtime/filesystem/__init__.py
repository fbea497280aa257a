"""Files behind a port: `FileSystem` and `File`, and the real disk.

The simulated disk is `filesystem.memory`, which a broker never imports. All other code reaches files only through these
names.
"""

from __future__ import annotations

from lowtide.runtime.filesystem.failures import FailureKind, failure_kind, is_passing
from lowtide.runtime.filesystem.port import (
    AlreadyLockedError,
    Buffer,
    CannotPunchError,
    File,
    FileSystem,
    FileToSync,
    Lock,
    Syncable,
)
from lowtide.runtime.filesystem.real import OpenDescriptor, OsFile, OsFileSystem

__all__ = [
    "AlreadyLockedError",
    "Buffer",
    "CannotPunchError",
    "FailureKind",
    "File",
    "FileSystem",
    "FileToSync",
    "Lock",
    "OpenDescriptor",
    "OsFile",
    "OsFileSystem",
    "Syncable",
    "failure_kind",
    "is_passing",
]
