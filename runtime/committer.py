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
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Final, Protocol, TypeAlias

import msgspec

from lowtide.runtime.clock import SystemClock
from lowtide.runtime.filesystem import FailureKind, FileSystem, OsFile, Syncable, failure_kind, is_passing
from lowtide.runtime.quick_syncs import SyncFunctions, SyncListeners, quick_syncs
from lowtide.runtime.threads import start_thread

# An open for a sync failed: neither the disk nor the synced file is at fault.
NO_DESCRIPTOR_ERRNOS: Final = frozenset({errno.EMFILE, errno.ENFILE})


Call: TypeAlias = tuple[Callable[[Any], None], Any]


def call_all(loop: asyncio.AbstractEventLoop, calls: Iterable[Call]) -> None:
    """Makes the calls. A call that raises is reported like a failing callback and doesn't prevent the others."""
    for function, argument in calls:
        try:
            function(argument)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is reported
            loop.call_exception_handler({"message": f"{function!r} failed", "exception": error})


class Completions:
    """Calls that threads request, made in the event loop in order.

    One wake-up is for many calls, and none is lost when the loop stops.
    """

    __slots__ = ("_asked", "_loop", "_woken")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._asked: deque[Sequence[Call]] = deque()
        self._woken = False

    def add(self, calls: Sequence[Call]) -> None:
        """Makes the loop call each function with its argument. From any thread."""
        self._asked.append(calls)
        # Read after the append: if `run` has not cleared the flag yet, it has not looked at the queue yet either.
        if not self._woken:
            self._woken = True
            try:
                self._loop.call_soon_threadsafe(self.run)
            except RuntimeError:
                # The loop is closed; the owner's close() runs the rest.
                assert self._loop.is_closed()

    def run(self) -> None:
        """Makes the requested calls. In the loop's thread only."""
        self._woken = False
        for _ in range(len(self._asked)):
            call_all(self._loop, self._asked.popleft())


class Barrier(msgspec.Struct, frozen=True, kw_only=True):
    """What must become durable: sync the files, then rename in order (source, target), then sync the directories.

    The barrier keeps its open files open until the answer.
    """

    files: tuple[Syncable, ...] = ()
    renames: tuple[tuple[str, str], ...] = ()
    directories: tuple[str, ...] = ()


class NoDescriptorError(Exception):
    """No descriptor was free for a file that must be opened for its sync. The round continues from here later."""


class Round:
    """A group commit: several barriers carried out as one, with an outcome for each.

    After a failed sync it tries nothing more. Every outcome is then that of a broken disk, whatever the sync reported.
    """

    def __init__(self, filesystem: FileSystem, barriers: Sequence[Barrier]) -> None:
        self._filesystem = filesystem
        self._barriers = barriers
        self._files: dict[Syncable, OSError | None] = {}
        self._renamed = False
        self._directories: dict[str, OSError | None] = {}
        self._last_error: OSError | None = None
        self.outcomes: list[OSError | None] = [None] * len(barriers)
        self.failure: OSError | None = None

    @property
    def syncs(self) -> int:
        return len(self._files) + len(self._directories)

    def run(self) -> bool:
        """Fills `outcomes`, and sets `failure` if the disk can't be trusted any more.

        Returns False to be run again later.
        """
        try:
            self._sync_files()
            if self.failure is None:
                self._rename()
                self._sync_directories()
        except NoDescriptorError:
            return False
        if self.failure is not None:
            self.outcomes = [outcome or self.failure for outcome in self.outcomes]
        return True

    def give_up(self) -> None:
        """Fails everything, because the round can't be run again."""
        assert self._last_error is not None
        self.failure = sync_error(self._last_error)
        self.outcomes = [outcome or self.failure for outcome in self.outcomes]

    def _sync_files(self) -> None:
        # A quiet broker mostly has rounds of one barrier, so nothing here may cost more than the syncs that it saves.
        synced = self._files
        for index, barrier in enumerate(self._barriers):
            for file in barrier.files:
                if file not in synced:
                    synced[file] = self._attempt(file.sync)
                self.outcomes[index] = self.outcomes[index] or synced[file]
                if self.failure is not None:
                    return

    def _rename(self) -> None:
        if self._renamed:
            return
        self._renamed = True
        for index, barrier in enumerate(self._barriers):
            if self.outcomes[index] is None:
                try:
                    for source, target in barrier.renames:
                        self._filesystem.rename(source, target)
                except OSError as error:
                    self.outcomes[index] = error

    def _sync_directories(self) -> None:
        synced = self._directories
        for index, barrier in enumerate(self._barriers):
            if self.outcomes[index] is not None:
                continue
            for directory in barrier.directories:
                if directory not in synced:
                    synced[directory] = self._attempt(partial(self._filesystem.sync_directory, directory))
                self.outcomes[index] = self.outcomes[index] or synced[directory]
                if self.failure is not None:
                    return

    def _attempt(self, sync: Callable[[], None]) -> OSError | None:
        try:
            sync()
        except OSError as error:
            if error.errno in NO_DESCRIPTOR_ERRNOS:
                self._last_error = error
                raise NoDescriptorError from error
            if failure_kind(error.errno) is FailureKind.GONE:
                return error
            self.failure = sync_error(error)
            return self.failure
        return None


def sync_error(error: OSError) -> OSError:
    """Returns the error of a failed sync, never one that looks temporary: a repeated sync proves nothing."""
    if not is_passing(error):
        return error
    failed = OSError(
        errno.EIO,
        f"a sync failed, and what the disk holds is unknown: {error.strerror} (errno {error.errno})",
        error.filename,
    )
    failed.__cause__ = error
    return failed


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


BUCKETS: Final = 27
"""Buckets by the bit length of microseconds: the last one has everything above half a minute."""

BOUNDS_S: Final = tuple((1 << length) / 1e6 for length in range(BUCKETS - 1))
"""Upper bounds of all but the last."""


class Durations:
    """Durations as a histogram, their sum and the longest. One thread adds; a reader may miss the newest."""

    __slots__ = ("counts", "longest_ns", "total_ns")

    def __init__(self) -> None:
        self.counts = [0] * BUCKETS
        self.total_ns = self.longest_ns = 0

    def add(self, took_ns: int) -> None:
        self.counts[min((took_ns // 1000).bit_length(), BUCKETS - 1)] += 1
        self.total_ns += took_ns
        self.longest_ns = max(self.longest_ns, took_ns)


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
            sync_functions,
            loop,
            SyncListeners(partial(call_all, loop), self._on_quick_failure, self.figures.note, self._release_held),
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
