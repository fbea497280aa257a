"""Syncs of single open files by a thread that needs no interpreter, where there is a compiled module.

A Python thread must get the interpreter's lock twice for a sync: when it is asked, while the loop still works on the
request that asks, and when the disk is done. This one needs it never, and begins to sync while the loop goes on.

Guards: a descriptor that was submitted stays open until its outcome was taken, whatever becomes of its file. Outcomes
come in the order of submission. After a failed sync no other one is tried.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, TypeAlias

from lowtide.runtime.completions import call_all
from lowtide.runtime.filesystem import OpenDescriptor

OnSynced: TypeAlias = Callable[[OSError | None], None]


class SyncFunctions(Protocol):
    """The functions of the compiled module."""

    def open_syncs(self) -> tuple[Any, int] | None:
        """Start a thread.

        Returns what the others take, and a descriptor that is readable when outcomes may be taken; None: no thread.
        """

    def submit_sync(self, syncs: Any, descriptor: int, /) -> bool:
        """Have a file synced, which stays open until its outcome is taken.

        Returns False, having done nothing, where too many wait.
        """

    def take_synced(self, syncs: Any, /) -> tuple[tuple[int, int, int, int, int], ...]:
        """The rounds that are done: files submitted, files synced, nanoseconds, error number (0: none), and which file had it."""

    def wait_synced(self, syncs: Any, /) -> None:
        """Block until `take_synced` returns something, if anything was submitted."""

    def close_syncs(self, syncs: Any, /) -> None:
        """Have the thread end when it has done what was submitted."""


class SyncListeners(NamedTuple):
    """What quick syncs call in the loop."""

    on_failure: Callable[[OSError], OSError]
    """A sync has failed: what all files of this round, and of all that follow, get."""
    on_round: Callable[[int, int, int], None]
    """A round was carried out and answered: files submitted, files synced, and nanoseconds."""
    on_idle: Callable[[], None]
    """No file is left that has no outcome."""


class QuickSyncs:
    """The thread of one committer."""

    __slots__ = ("_functions", "_listeners", "_loop", "_submitted", "_syncs", "_woken")

    def __init__(
        self,
        functions: SyncFunctions,
        syncs: tuple[Any, int],
        loop: asyncio.AbstractEventLoop,
        listeners: SyncListeners,
    ) -> None:
        """`syncs` are what `open_syncs` returned."""
        self._functions = functions
        self._syncs, self._woken = syncs
        self._loop = loop
        self._listeners = listeners
        self._submitted: deque[tuple[OpenDescriptor, str, OnSynced]] = deque()
        loop.add_reader(self._woken, self.run)

    def __len__(self) -> int:
        """How many files were submitted and have no outcome yet."""
        return len(self._submitted)

    def submit(self, descriptor: OpenDescriptor, path: str, on_synced: OnSynced) -> bool:
        """Have an open file synced. Returns False, having done nothing, where too many wait."""
        if not self._functions.submit_sync(self._syncs, descriptor.number):
            return False
        self._submitted.append((descriptor, path, on_synced))
        return True

    def run(self) -> None:
        """Answer what is done."""
        submitted = self._submitted
        for count, syncs, took_ns, number, failed in self._functions.take_synced(self._syncs):
            outcome = (
                self._listeners.on_failure(OSError(number, os.strerror(number), submitted[failed][1]))
                if number
                else None
            )
            call_all(self._loop, [(submitted.popleft()[2], outcome) for _ in range(count)])
            self._listeners.on_round(count, syncs, took_ns)
        if not submitted:
            self._listeners.on_idle()

    def finish(self) -> None:
        """Answer all that was submitted, and what is submitted by that, and end the thread. Blocks."""
        while self._submitted:
            self._functions.wait_synced(self._syncs)
            self.run()
        if not self._loop.is_closed():
            self._loop.remove_reader(self._woken)
        self._functions.close_syncs(self._syncs)


def quick_syncs(
    functions: SyncFunctions | None, loop: asyncio.AbstractEventLoop, listeners: SyncListeners
) -> QuickSyncs | None:
    """A thread of the compiled module; None without the module, or where it starts none."""
    syncs = None if functions is None else functions.open_syncs()
    return None if functions is None or syncs is None else QuickSyncs(functions, syncs, loop, listeners)
