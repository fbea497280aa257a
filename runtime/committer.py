"""Durability behind a port: the only code, beside start and stop, that waits for the disk.

A caller that needs something durable describes it as a `Barrier` and hands it to the `Committer` of its log directory, which answers in the
event loop. Barriers that wait together are carried out together (group commit): each file is synced once however many asked for it.

* The answers come in the order of submission. The barriers of one round become durable in no particular order: who needs one to be
  durable before another waits for the answer of the first.
* Where the process lacks a descriptor for a sync, the round waits for one: that isn't an outcome.
* After a failed sync nothing is known about the disk (see `filesystem.port`): the committer answers that error from then on, and tries
  nothing more. Its error number is then one of a broken disk, whatever the sync reported (`filesystem.failures`). That a file was closed,
  or a name removed, before its turn came is the fault of that barrier alone; so is a rename that failed, for want of room for one. An
  error of the kinds `NO_ROOM` and `NO_RESOURCE` thus comes from a rename: those before it in the barrier are done, those behind it aren't.

Source: PostgreSQL's lesson of 2018, "fsync() surprise" (lwn.net/Articles/752063).
"""

from __future__ import annotations

import asyncio
import errno
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Protocol, TypeAlias

import msgspec

from lowtide.runtime.clock import SystemClock
from lowtide.runtime.completions import Completions, call_all
from lowtide.runtime.durations import Durations
from lowtide.runtime.filesystem import FailureKind, FileSystem, Syncable, failure_kind, is_passing
from lowtide.runtime.random import Random
from lowtide.runtime.threads import start_thread

OnDone: TypeAlias = Callable[[OSError | None], None]

# An open that a sync needs has failed: neither the disk nor the thing to be synced is at fault.
NO_DESCRIPTOR_ERRNOS: Final = frozenset({errno.EMFILE, errno.ENFILE})

RETRY_S: Final = 0.05
"""How long the committer waits for a descriptor before it tries again: others close theirs meanwhile."""

CLOSING_RETRIES: Final = 200
"""How often it tries again at a stop: ten seconds."""


class Barrier(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be durable: sync the files, then rename in order (source, target), then sync the directories.

    The open ones of the files stay open until the answer, for the barrier holds them.
    """

    files: tuple[Syncable, ...] = ()
    renames: tuple[tuple[str, str], ...] = ()
    directories: tuple[str, ...] = ()


class Committer(Protocol):
    """Carries out barriers, elsewhere. Used from the event loop's thread only."""

    def submit(self, barrier: Barrier, on_done: OnDone) -> None:
        """Make the barrier durable and then call `on_done`: with None, or with the error.

        `on_done` is called in the event loop, in the order of submission, and never before `submit` has returned. With an error,
        none, some or all of the barrier has happened.
        """
        ...

    def close(self) -> None:
        """Carry out what was submitted, call every `on_done`, carry out what those submit, and stop.

        Blocks; a second call does nothing.
        """
        ...


class CommitFigures:
    """What a committer has done since it began. Rounds that sync nothing have no time."""

    __slots__ = ("answered", "rounds", "submitted", "syncs")

    def __init__(self) -> None:
        self.submitted = self.answered = 0
        """Barriers; the difference is those that wait, and those of the round that is carried out."""
        self.syncs = 0
        """Files and directories that were synced."""
        self.rounds = Durations()

    def note(self, barriers: int, syncs: int, took_ns: int) -> None:
        """A round has been carried out."""
        self.answered += barriers
        if syncs:
            self.syncs += syncs
            self.rounds.add(took_ns)


class MeasuredCommitter(Committer, Protocol):
    """A committer that says how it does."""

    @property
    def figures(self) -> CommitFigures: ...


class _NoDescriptorError(Exception):
    """There was no descriptor for a file that a sync must open. Nothing was tried: the round continues from here later."""


class _Round:
    """One group commit: several barriers carried out as one, with an outcome for each."""

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
        """Files and directories that were synced."""
        return len(self._files) + len(self._directories)

    def run(self) -> bool:
        """Fill `outcomes`; `failure` is set if the disk can be trusted no more. Returns False where it has to be run again, later."""
        try:
            self._sync_files()
            if self.failure is None:
                self._rename()
                self._sync_directories()
        except _NoDescriptorError:
            return False
        if self.failure is not None:
            self.outcomes = [outcome or self.failure for outcome in self.outcomes]
        return True

    def give_up(self) -> None:
        """It isn't run again, though it has to be: all of it has failed."""
        assert self._last_error is not None
        self.failure = _sync_error(self._last_error)
        self.outcomes = [outcome or self.failure for outcome in self.outcomes]

    def _sync_files(self) -> None:
        # A round of one barrier is the common case of a quiet broker, so nothing here costs more than the syncs it saves.
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
                raise _NoDescriptorError from error
            if failure_kind(error.errno) is FailureKind.GONE:
                return error
            self.failure = _sync_error(error)
            return self.failure
        return None


def _sync_error(error: OSError) -> OSError:
    """The error of a failed sync. One without room or resources must not look like an error that passes: trying again proves nothing."""
    if not is_passing(error):
        return error
    failed = OSError(
        errno.EIO, f"a sync failed, and what the disk holds is unknown: {error.strerror} (errno {error.errno})", error.filename
    )
    failed.__cause__ = error
    return failed


class ThreadCommitter:
    """One thread, for one log directory. How much waits is bounded by those who submit: each waits for its answer."""

    def __init__(self, filesystem: FileSystem, loop: asyncio.AbstractEventLoop, name: str) -> None:
        self._filesystem = filesystem
        self._completions = Completions(loop)
        self._submitted: queue.SimpleQueue[tuple[Barrier, OnDone] | None] = queue.SimpleQueue()
        self.figures = CommitFigures()
        self._failure: OSError | None = None
        self._closing = self._closed = False
        # A daemon, so that a broker that dies of an exception does not hang at exit on a thread that is not stopped any more.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        start_thread(self._thread)

    def submit(self, barrier: Barrier, on_done: OnDone) -> None:
        assert not self._closed, self._thread.name
        self.figures.submitted += 1
        self._submitted.put((barrier, on_done))

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self._submitted.put(None)
            self._thread.join()
            self._completions.run()
            while not self._submitted.empty():  # Some answers were followed by another step.
                self._work()
                self._completions.run()
            self._closed = True

    def _run(self) -> None:
        while self._work():
            pass

    def _work(self) -> bool:
        """One round of what waits, or the next that comes. Returns whether there may be others."""
        waiting = [self._submitted.get()]
        while not self._submitted.empty():  # No other thread takes anything.
            waiting.append(self._submitted.get())
        taken = [item for item in waiting if item is not None]
        if taken:
            outcomes = self._commit([barrier for barrier, _ in taken])
            self._completions.add([(on_done, outcome) for (_, on_done), outcome in zip(taken, outcomes, strict=True)])
        return waiting[-1] is not None

    def _commit(self, barriers: list[Barrier]) -> list[OSError | None]:
        if self._failure is None:
            this_round, began_ns = _Round(self._filesystem, barriers), SystemClock.monotonic_ns()
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

    def _run_round(self, this_round: _Round) -> None:
        closing = 0
        while not this_round.run():
            closing += self._closing
            if closing > CLOSING_RETRIES:
                this_round.give_up()
                return
            time.sleep(RETRY_S)


class SimulatedCommitter:
    """The same on virtual time. A round takes `delay_range_ms`, settable at any time; its effect falls somewhere within.

    So a crash may find what was submitted not yet durable, or durable and not yet answered.
    """

    def __init__(
        self,
        filesystem: FileSystem,
        loop: asyncio.AbstractEventLoop,
        random: Random,
        delay_range_ms: tuple[float, float] = (0.05, 2.0),
    ) -> None:
        self.delay_range_ms = delay_range_ms
        self._filesystem = filesystem
        self._loop = loop
        self._random = random
        self._submitted: deque[tuple[Barrier, OnDone]] = deque()
        self._taken: list[tuple[Barrier, OnDone]] = []
        self._round: _Round | None = None
        self._outcomes: list[OSError | None] = []
        self._step: asyncio.TimerHandle | asyncio.Handle | None = None
        self._began_s = 0.0
        self._syncs = 0
        self.figures = CommitFigures()
        self._failure: OSError | None = None
        self._closing = self._closed = False

    def submit(self, barrier: Barrier, on_done: OnDone) -> None:
        assert not self._closed
        self.figures.submitted += 1
        self._submitted.append((barrier, on_done))
        if self._step is None and not self._closing:
            self._step = self._loop.call_soon(self._begin_round)

    def close(self) -> None:
        if self._closing:
            return
        self._closing = True
        if self._step is not None:
            self._step.cancel()
            self._step = None
        if self._taken and not self._outcomes:
            self._outcomes = self._commit_to_the_end()
        self._answer()
        while self._submitted:
            self._taken = list(self._submitted)
            self._submitted.clear()
            self._outcomes = self._commit_to_the_end()
            self._answer()
        self._closed = True

    def _begin_round(self) -> None:
        self._taken = list(self._submitted)
        self._submitted.clear()
        self._began_s = self._loop.time()
        delay_ms = self._random.uniform(*self.delay_range_ms)
        until_effect_ms = self._random.random() * delay_ms
        self._step = self._loop.call_later(until_effect_ms / 1000, self._take_effect, delay_ms - until_effect_ms)

    def _take_effect(self, until_answer_ms: float) -> None:
        outcomes = self._commit()
        if outcomes is None:
            self._step = self._loop.call_later(RETRY_S, self._take_effect, until_answer_ms)
            return
        self._outcomes = outcomes
        self._step = self._loop.call_later(until_answer_ms / 1000, self._end_round)

    def _end_round(self) -> None:
        self._step = None
        self._answer()
        if self._submitted and self._step is None and not self._closed:
            self._step = self._loop.call_soon(self._begin_round)

    def _commit(self) -> list[OSError | None] | None:
        """The outcomes of the barriers that are taken; None where the round has to be run again."""
        if self._failure is not None:
            return [self._failure] * len(self._taken)
        if self._round is None:
            self._round = _Round(self._filesystem, [barrier for barrier, _ in self._taken])
        if not self._round.run():
            return None
        done, self._round = self._round, None
        self._failure = done.failure
        self._syncs = done.syncs
        return done.outcomes

    def _commit_to_the_end(self) -> list[OSError | None]:
        for _ in range(CLOSING_RETRIES):
            outcomes = self._commit()
            if outcomes is not None:
                return outcomes
        assert self._round is not None
        self._round.give_up()
        done, self._round = self._round, None
        self._failure = done.failure
        return done.outcomes

    def _answer(self) -> None:
        took_ns = round((self._loop.time() - self._began_s) * 1e6) * 1000
        syncs, self._syncs = self._syncs, 0
        self.figures.note(len(self._taken), syncs, took_ns)
        calls = [(on_done, outcome) for (_, on_done), outcome in zip(self._taken, self._outcomes, strict=True)]
        self._taken, self._outcomes = [], []
        call_all(self._loop, calls)
