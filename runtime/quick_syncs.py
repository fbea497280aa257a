"""Syncs of single open files in a thread without the interpreter lock, with the compiled module.

A Python thread needs the interpreter's lock twice for a sync: when it is requested, while the loop still works on the
request, and when the disk is done. This thread never needs it, and starts while the loop continues.

Guards: a submitted descriptor stays open until its outcome is taken. Outcomes come in the order of submission. After a
failed sync no other is tried.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Protocol, TypeAlias

from lowtide.runtime.filesystem import OpenDescriptor

OnSynced: TypeAlias = Callable[[OSError | None], None]


class SyncFunctions(Protocol):
    """The functions of the compiled module."""

    def open_syncs(self) -> tuple[Any, int] | None:
        """Starts a thread.

        Returns the handle for the other functions, and a descriptor that becomes readable with outcomes.

        None if there is no thread.
        """

    def submit_sync(self, syncs: Any, descriptor: int, /) -> bool:
        """Syncs a file, which stays open until its outcome is taken. Returns False without effect if too many wait."""

    def take_synced(self, syncs: Any, /) -> tuple[tuple[int, int, int, int, int], ...]:
        """Returns finished rounds: files submitted, files synced, nanoseconds, errno (0: none), and the failed file."""

    def wait_synced(self, syncs: Any, /) -> None:
        """Blocks until `take_synced` returns something, if anything was submitted."""

    def close_syncs(self, syncs: Any, /) -> None:
        """Ends the thread when it has done what was submitted."""


class SyncListeners(NamedTuple):
    """What quick syncs call in the loop."""

    on_synced: Callable[[Iterable[tuple[OnSynced, OSError | None]]], None]
    """Calls each function with its outcome."""
    on_failure: Callable[[OSError], OSError]
    """Converts a sync's error to the one for all files of this round and later ones."""
    on_round: Callable[[int, int, int], None]
    """Reports an answered round: files submitted, files synced, and nanoseconds."""
    on_idle: Callable[[], None]
    """Reports that no file waits for an outcome."""


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
        """`syncs` is the result of `open_syncs`."""
        self._functions = functions
        self._syncs, self._woken = syncs
        self._loop = loop
        self._listeners = listeners
        self._submitted: deque[tuple[OpenDescriptor, str, OnSynced]] = deque()
        loop.add_reader(self._woken, self.run)

    def __len__(self) -> int:
        """Returns the number of files without an outcome."""
        return len(self._submitted)

    def submit(self, descriptor: OpenDescriptor, path: str, on_synced: OnSynced) -> bool:
        """Syncs an open file. Returns False without effect if too many wait."""
        if not self._functions.submit_sync(self._syncs, descriptor.number):
            return False
        self._submitted.append((descriptor, path, on_synced))
        return True

    def run(self) -> None:
        """Answers finished syncs."""
        submitted = self._submitted
        for count, syncs, took_ns, number, failed in self._functions.take_synced(self._syncs):
            outcome = (
                self._listeners.on_failure(OSError(number, os.strerror(number), submitted[failed][1]))
                if number
                else None
            )
            self._listeners.on_synced([(submitted.popleft()[2], outcome) for _ in range(count)])
            self._listeners.on_round(count, syncs, took_ns)
        if not submitted:
            self._listeners.on_idle()

    def finish(self) -> None:
        """Answers everything, including later submissions, and ends the thread. Blocks."""
        while self._submitted:
            self._functions.wait_synced(self._syncs)
            self.run()
        if not self._loop.is_closed():
            self._loop.remove_reader(self._woken)
        self._functions.close_syncs(self._syncs)


def quick_syncs(
    functions: SyncFunctions | None, loop: asyncio.AbstractEventLoop, listeners: SyncListeners
) -> QuickSyncs | None:
    """Returns a thread of the compiled module; None without the module, or if it can't start one."""
    syncs = None if functions is None else functions.open_syncs()
    return None if functions is None or syncs is None else QuickSyncs(functions, syncs, loop, listeners)
