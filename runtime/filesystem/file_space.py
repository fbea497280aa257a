"""The blocks of an open file: reserves them ahead, and gives back those of a range. Sources: fallocate(2)."""

from __future__ import annotations

import errno
import functools
import os
from collections.abc import Callable
from typing import Final

from lowtide.runtime.filesystem.port import CannotPunchError

# The file system or kernel doesn't support the flag or call; the disk is fine.
UNSUPPORTED_ERRNOS: Final = frozenset({errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS})

# fallocate(2): FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE.
_PUNCH_MODE: Final = 0x01 | 0x02


@functools.cache
def _fallocate() -> Callable[[int, int, int, int], int] | None:
    """Returns the C library's fallocate, which `os` lacks, as a function that returns the errno; None if missing."""
    import ctypes  # noqa: PLC0415 - most starts need it late or never

    library = ctypes.CDLL(None, use_errno=True)
    found = getattr(library, "fallocate64", None) or getattr(library, "fallocate", None)
    if found is None:
        return None
    function = found
    function.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    function.restype = ctypes.c_int

    def fallocate(descriptor: int, mode: int, position: int, size: int) -> int:
        while function(descriptor, mode, position, size):
            number = ctypes.get_errno()
            if number != errno.EINTR:
                return number
        return 0

    return fallocate


def reserve(descriptor: int, size: int) -> bool:
    """Reserves blocks for the first `size` bytes. Returns False if the system can't. Errors: OSError of a full disk."""
    if not hasattr(os, "posix_fallocate"):
        return False
    try:
        os.posix_fallocate(descriptor, 0, size)
    except OSError as error:
        if error.errno not in UNSUPPORTED_ERRNOS:
            raise
        return False
    return True


def make_hole(path: str, descriptor: int, position: int, size: int) -> None:
    """Frees the blocks of a range, which then reads as zeros. Errors: CannotPunchError if the system can't; OSError."""
    fallocate = _fallocate()
    number = fallocate(descriptor, _PUNCH_MODE, position, size) if fallocate is not None else errno.ENOSYS
    if number in UNSUPPORTED_ERRNOS:
        raise CannotPunchError(path)
    if number:
        raise OSError(number, os.strerror(number), path)
