"""Durability behind a port: the only code, beside start and stop, that waits for the disk.

A caller describes what must be durable as a `Barrier` and submits it to the `Committer` of its log directory, which
answers in the event loop. Waiting barriers are carried out together (group commit), and each file is synced once.

* Answers come in the order of submission. The barriers of one round become durable in no particular order: a caller
  that needs an order waits for the first answer.
* A round without a free descriptor for a sync waits for one.
* After a failed sync the state of the disk is unknown (see `filesystem.port`): the committer answers that error from
  then on and tries nothing more. Its error number is then that of a broken disk, whatever the sync reported
  (`filesystem.failures`). A file that was closed or removed before its turn fails only its barrier; so does a failed
  rename. So an error of kind `NO_ROOM` or `NO_RESOURCE` comes from a rename: earlier ones in the barrier are done,
  later ones aren't.

Source: PostgreSQL's lesson of 2018, "fsync() surprise" (lwn.net/Articles/752063).
"""

from __future__ import annotations

import asyncio
import errno
import queue
import threading
import time
from collections.abc import Callable
from typing import Final, Protocol, TypeAlias

from lowtide.runtime.clock import SystemClock
from lowtide.runtime.commit_round import Barrier, Round, sync_error
from lowtide.runtime.completions import Completions
from lowtide.runtime.durations import Durations
from lowtide.runtime.filesystem import FileSystem, OsFile
from lowtide.runtime.quick_syncs import SyncFunctions, SyncListeners, quick_syncs
from lowtide.runtime.threads import start_thread

__all__ = [
    "CLOSING_RETRIES",
    "RETRY_S",
    "Barrier",
    "CommitFigures",
    "Committer",
    "MeasuredCommitter",
    "OnDone",
    "ThreadCommitter",
]

OnDone: TypeAlias = Callable[[OSError | None], None]

RETRY_S: Final = 0.05
"""How long the committer waits for a free descriptor before it tries again."""

CLOSING_RETRIES: Final = 200
"""How often it tries again at shutdown: ten seconds."""


class Committer(Protocol):
    """Carries out barriers elsewhere. Used from the event loop's thread only."""

    def submit(self, barrier: Barrier, on_done: OnDone) -> None:
        """Makes the barrier durable and then calls `on_done` with None or the error.

        `on_done` is called in the event loop, in the order of submission, and never before `submit` has returned. After
        an error none, some or all of the barrier has happened.
        """

    def close(self) -> None:
        """Carries out everything submitted, including by `on_done` callbacks, and stops.

        Blocks; a second call does nothing.
        """


class CommitFigures:
    """The work of a committer since its start. Rounds without a sync have no time."""

    __slots__ = ("answered", "rounds", "submitted", "syncs")

    def __init__(self) -> None:
        self.submitted = self.answered = 0
        """Barriers; the difference is those that wait or run."""
        self.syncs = 0
        self.rounds = Durations()

    def note(self, barriers: int, syncs: int, took_ns: int) -> None:
        self.answered += barriers
        if syncs:
            self.syncs += syncs
            self.rounds.add(took_ns)


class MeasuredCommitter(Committer, Protocol):
    """A committer with figures."""

    @property
    def figures(self) -> CommitFigures: ...


class ThreadCommitter:
    """One thread for one log directory. Submitters bound the queue: each waits for its answer.

    With the compiled module a second thread handles barriers that are the sync of one open file (`quick_syncs`). Only
    one of the two works at a time, so that answers keep their order, and after a failed sync the other tries nothing: a
    barrier of the other kind waits until the first thread is done.
    """

    def __init__(
        self,
        filesystem: FileSystem,
        loop: asyncio.AbstractEventLoop,
        name: str,
        sync_functions: SyncFunctions | None = None,
    ) -> None:
        """`sync_functions` are those of the compiled module, if any."""
        self._filesystem = filesystem
        self._completions = Completions(loop)
        self._submitted: queue.SimpleQueue[tuple[Barrier, OnDone] | None] = queue.SimpleQueue()
        self._in_thread = 0
        """Barriers submitted to the thread whose answers haven't been called yet."""
        self._held: list[tuple[Barrier, OnDone]] = []
        """Barriers that wait for the quick syncs."""
        self.figures = CommitFigures()
        self._failure: OSError | None = None
        self._closing = self._closed = False
        # A daemon, so that a broker that dies of an exception doesn't hang at exit on this thread.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        start_thread(self._thread)
        self._quick = quick_syncs(
            sync_functions, loop, SyncListeners(self._on_quick_failure, self.figures.note, self._release_held)
        )

    def submit(self, barrier: Barrier, on_done: OnDone) -> None:
        assert not self._closed, self._thread.name
        self.figures.submitted += 1
        quick = self._quick
        if quick is not None and not self._in_thread and not self._held and self._failure is None:
            file = (
                barrier.files[0] if len(barrier.files) == 1 and not (barrier.renames or barrier.directories) else None
            )
            descriptor = file.descriptor if type(file) is OsFile else None
            if descriptor is not None and file is not None and quick.submit(descriptor, file.path, on_done):
                return
        if quick is not None and (len(quick) or self._held):
            self._held.append((barrier, on_done))
        else:
            self._in_thread += 1
            self._submitted.put((barrier, on_done))

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            if self._quick is not None:
                self._quick.finish()
                self._quick = None
            self._release_held()
            self._submitted.put(None)
            self._thread.join()
            self._completions.run()
            while not self._submitted.empty():  # Some answers submitted more.
                self._work()
                self._completions.run()
            self._closed = True

    def _on_quick_failure(self, error: OSError) -> OSError:
        if self._failure is None:
            self._failure = sync_error(error)
        return self._failure

    def _release_held(self) -> None:
        if not self._held:
            return
        held, self._held = self._held, []
        self._in_thread += len(held)
        for item in held:
            self._submitted.put(item)

    def _leave(self, count: int) -> None:
        self._in_thread -= count

    def _run(self) -> None:
        while self._work():
            pass

    def _work(self) -> bool:
        """Runs one round. Returns whether there may be more."""
        waiting = [self._submitted.get()]
        while not self._submitted.empty():  # No other thread takes items.
            waiting.append(self._submitted.get())
        taken = [item for item in waiting if item is not None]
        if taken:
            outcomes = self._commit([barrier for barrier, _ in taken])
            answers = [(on_done, outcome) for (_, on_done), outcome in zip(taken, outcomes, strict=True)]
            self._completions.add([(self._leave, len(taken)), *answers])
        return waiting[-1] is not None

    def _commit(self, barriers: list[Barrier]) -> list[OSError | None]:
        if self._failure is None:
            this_round, began_ns = Round(self._filesystem, barriers), SystemClock.monotonic_ns()
            try:
                self._run_round(this_round)
            except Exception as bug:  # noqa: BLE001 - whatever it is, the waiting callers must get it
                self._failure = OSError(errno.EIO, f"the committer {self._thread.name} failed: {bug!r}")
                self._failure.__cause__ = bug
            else:
                self._failure = this_round.failure
                self.figures.note(len(barriers), this_round.syncs, SystemClock.monotonic_ns() - began_ns)
                return this_round.outcomes
        self.figures.note(len(barriers), 0, 0)
        return [self._failure] * len(barriers)

    def _run_round(self, this_round: Round) -> None:
        closing = 0
        while not this_round.run():
            closing += self._closing
            if closing > CLOSING_RETRIES:
                this_round.give_up()
                return
            time.sleep(RETRY_S)
