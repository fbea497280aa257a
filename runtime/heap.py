"""Returns freed memory to the system.

The C library keeps freed memory for later and returns only what is at the end of its heap: a single small object there
keeps hundreds of megabytes resident. `malloc_trim` returns the pages between. It takes about 0.2 ms per megabyte and
blocks other allocations, so it runs in a worker, and only for memory freed since the last call.

Source: malloc_trim(3), mallinfo2(3): glibc 2.33 and later. Elsewhere nothing is done.
"""

from __future__ import annotations

import ctypes
from typing import Protocol


class Heap(Protocol):
    """The memory of the process."""

    def free_bytes(self) -> int:
        """Returns the freed memory that the C library keeps, trimmed or not."""

    def trim(self) -> None:
        """Trims the heap, which may take some tens of milliseconds. For a worker."""


class _MallInfo2(ctypes.Structure):
    """`struct mallinfo2`."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keepcost",
        )
    )


class _GlibcHeap:
    """The heap of glibc."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._mallinfo2 = library.mallinfo2
        self._mallinfo2.restype = _MallInfo2
        self._malloc_trim = library.malloc_trim
        self._malloc_trim.argtypes = (ctypes.c_size_t,)

    def free_bytes(self) -> int:
        return int(self._mallinfo2().fordblks)

    def trim(self) -> None:
        self._malloc_trim(0)


def system_heap() -> Heap | None:
    """Returns the heap of this process; None if the C library can't trim it."""
    try:
        return _GlibcHeap(ctypes.CDLL(None))
    except (AttributeError, OSError):
        return None
