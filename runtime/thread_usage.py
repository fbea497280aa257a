"""The processor time of the running thread, the time it was denied, and full garbage collections.

Linux reports how long a ready thread waited for a processor (`run_delay` in `schedstat`); elsewhere that is 0, and its
effect looks like waiting for a disk.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable
from typing import Final, NamedTuple, TypeAlias

_SCHEDSTAT: Final = "/proc/thread-self/schedstat"
_SCHEDSTAT_BYTES: Final = 64
_OLDEST_GENERATION: Final = 2


class ThreadUsage(NamedTuple):
    """Totals since some moment in the past; only differences are meaningful."""

    cpu_ns: int
    starved_ns: int
    """Ready to run without a free processor."""
    full_collections: int
    """Collections of all generations, by any thread: each stops all of Python."""


ReadUsage: TypeAlias = Callable[[], ThreadUsage]


def no_usage() -> ThreadUsage:
    """Returns no usage, for a simulated loop, whose time stands still while it works."""
    return ThreadUsage(0, 0, 0)


class ThreadUsageReader:
    """Reads the usage of the calling thread, which created it, in about two microseconds."""

    __slots__ = ("_descriptor",)

    def __init__(self) -> None:
        try:
            self._descriptor = os.open(_SCHEDSTAT, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._descriptor = -1

    def __call__(self) -> ThreadUsage:
        starved_ns = int(os.pread(self._descriptor, _SCHEDSTAT_BYTES, 0).split()[1]) if self._descriptor >= 0 else 0
        return ThreadUsage(time.thread_time_ns(), starved_ns, gc.get_stats()[_OLDEST_GENERATION]["collections"])

    def __del__(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
