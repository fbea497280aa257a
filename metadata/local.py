"""A metadata store in this process: engine, group commit, lease timers and watches, over a journal for durability.

The journal is SQLite in a broker and a simulated disk in the simulator, so both run this code. At most one group of
transactions is being written at a time; later ones are evaluated together after it. Reads see the committed state, and
nothing is committed before it is durable.

Guards: an answered transaction is durable; a failed write has no effect; a watch sees each revision once, in order.
"""

from __future__ import annotations

import asyncio
from contextvars import copy_context
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from lowtide.metadata.store import (
    NO_LEASE,
    AmbiguousError,
    Batch,
    Compare,
    KeyValue,
    LeaseGoneError,
    LeaseId,
    MetadataStoreError,
    Operation,
    Revision,
    TransactionResult,
    UnavailableError,
    check_transaction,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence

    from lowtide.metadata.engine import Engine, Staged
    from lowtide.runtime.clock import Clock

STALL_MS: Final = 500
"""A lease timer that fires later than this shows that the process was stopped (SIGSTOP, suspended laptop, swapping).
Its sessions could not renew, so the time of all leases restarts. A session fences itself by what it sent, so a longer
lease is safe."""

GRACE_MS: Final = 50
"""How long an expired lease may still be renewed. A loop that was blocked runs lease timers before the sessions that
renew; those get a chance first."""

MAX_WATCH_BATCHES: Final = 256
"""Batches that a watch takes from the history at once."""

LEASE_END_RETRY_MS: Final = 1000
"""The pause before the deletion of a lease's keys is retried after a full disk."""

MAX_QUEUED_TRANSACTIONS: Final = 10_000
"""Transactions that may wait for the disk; more are refused as unavailable."""


class WriteFailedError(Exception):
    """The journal could not write. `applied`: False if certainly nothing was written, None if unknown."""

    def __init__(self, reason: str, *, applied: bool | None) -> None:
        super().__init__(reason)
        self.applied = applied


class Journal(Protocol):
    """Makes batches durable, whole groups at a time."""

    def write(self, batches: Sequence[Batch], on_done: Callable[[WriteFailedError | None], None]) -> None:
        """Writes all of `batches` atomically; `on_done` is called later, in the event loop."""

    def close(self, on_closed: Callable[[], None]) -> None:
        """Finishes running writes and closes the files; `on_closed` is called later, in the event loop."""


class _QueuedTransaction(msgspec.Struct):
    """A queued transaction, or the end of a lease (`ended_lease`)."""

    answer: asyncio.Future[TransactionResult]
    compares: Sequence[Compare] = ()
    operations: Sequence[Operation] = ()
    otherwise: Sequence[Operation] = ()
    ended_lease: LeaseId = NO_LEASE
    result: TransactionResult | None = None


class LeaseTimer:
    """Ends leases whose time is over, with one timer for the lease that ends first.

    Keep-alives don't touch the timer: it fires early and is set again.
    """

    def __init__(
        self, engine: Engine, clock: Clock, loop: asyncio.AbstractEventLoop, end: Callable[[LeaseId], object]
    ) -> None:
        """`end` is called with each lease whose keys are to be deleted."""
        self._engine = engine
        self._clock = clock
        self._loop = loop
        self._end = end
        self._context = copy_context()
        self._timer: asyncio.TimerHandle | None = None
        self._at_ms = 0
        self._is_stopped = False

    def arm(self) -> None:
        """Sets the timer for the lease that ends first, unless it already fires before that."""
        deadline_ms = self._engine.next_lease_deadline()
        if deadline_ms is None or self._is_stopped:
            return
        if self._timer is not None:
            if self._at_ms <= deadline_ms:
                return
            self._timer.cancel()
        self._set(deadline_ms, self._on_due)

    def suspend(self) -> None:
        """Ends no lease until the timer is armed again."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def stop(self) -> None:
        self._is_stopped = True
        self.suspend()

    def _set(self, at_ms: int, then: Callable[[], None]) -> None:
        self._at_ms = at_ms
        # Never early: a loop's time may be slightly behind the clock's.
        delay_ms = max(0, at_ms - self._clock.monotonic_ms()) + 1
        self._timer = self._loop.call_later(delay_ms / 1000, then, context=self._context)

    def _on_due(self) -> None:
        """Gives the holder of an expired lease a last chance to renew it."""
        self._timer = None
        now_ms = self._clock.monotonic_ms()
        if not self._has_stalled(now_ms) and self._engine.expired_leases(now_ms):
            self._set(now_ms + GRACE_MS, self._end_expired)
        else:
            self.arm()

    def _end_expired(self) -> None:
        self._timer = None
        now_ms = self._clock.monotonic_ms()
        if not self._has_stalled(now_ms):
            for lease in self._engine.expired_leases(now_ms - GRACE_MS):
                self._engine.begin_lease_end(lease)
                self._end(lease)
        self.arm()

    def _has_stalled(self, now_ms: int) -> bool:
        """Returns whether the timer fired much too late; then the time of all leases restarts."""
        if now_ms - self._at_ms <= STALL_MS:
            return False
        self._engine.restart_leases(now_ms)
        return True


class LocalStore:
    """A `MetadataStore` in this process. Several sessions may share it."""

    connections = 1

    def __init__(self, *, engine: Engine, journal: Journal, clock: Clock, loop: asyncio.AbstractEventLoop) -> None:
        """`engine` has the state that is durable in the journal."""
        self.engine = engine
        self._journal = journal
        self._clock = clock
        self._loop = loop
        # Simulated processes may share a store that outlives them: its timers must not end with the process that set
        # them.
        self._context = copy_context()
        self._queue: list[_QueuedTransaction] = []
        self._writing = False
        self.failure: str | None = None
        """Why the store can't be used until it is opened again; None while it works."""
        self._closed = False
        self.leases = LeaseTimer(engine, clock, loop, self._end_lease)
        self._watchers: dict[asyncio.Future[None], None] = {}

    async def get(self, key: bytes) -> KeyValue | None:
        self._check_usable()
        return self.engine.keys.get(key)

    async def range(self, prefix: bytes) -> tuple[list[KeyValue], Revision]:
        self._check_usable()
        return self.engine.range(prefix), self.engine.revision

    async def revision(self) -> Revision:
        self._check_usable()
        return self.engine.revision

    async def watch(self, prefix: bytes, start_revision: Revision) -> AsyncGenerator[Batch, None]:
        """Yields batches from the history, which is the queue: a slow watcher needs no memory of its own."""
        assert start_revision >= 1, f"watch from revision {start_revision}"
        next_revision = start_revision
        while True:
            self._check_usable()
            batches = (
                self.engine.batches_from(next_revision, MAX_WATCH_BATCHES)
                if next_revision <= self.engine.revision
                else []
            )
            for batch in batches:
                next_revision = batch.revision + 1
                events = tuple(event for event in batch.events if event.key.startswith(prefix))
                if events:
                    yield Batch(batch.revision, events)
            if not batches:
                await self._wait_for_change()

    async def transact(
        self, compares: Sequence[Compare], operations: Sequence[Operation], otherwise: Sequence[Operation] = ()
    ) -> TransactionResult:
        check_transaction(compares, operations, otherwise)
        self._check_usable()
        if len(self._queue) >= MAX_QUEUED_TRANSACTIONS:
            raise UnavailableError(f"{len(self._queue)} transactions wait for the disk")
        return await self._submit(_QueuedTransaction(self._loop.create_future(), compares, operations, otherwise))

    async def lease_grant(self, time_to_live_ms: int) -> LeaseId:
        self._check_usable()
        lease = self.engine.grant_lease(time_to_live_ms, self._clock.monotonic_ms())
        self.leases.arm()
        return lease

    async def lease_keep_alive(self, lease: LeaseId) -> None:
        self._check_usable()
        self.engine.keep_lease_alive(lease, self._clock.monotonic_ms())

    async def lease_revoke(self, lease: LeaseId) -> None:
        self._check_usable()
        if self.engine.begin_lease_end(lease):
            await self._submit(_QueuedTransaction(self._loop.create_future(), ended_lease=lease))

    async def raft_surplus(self) -> int | None:
        return None

    def require_raft_surplus(self, least: int) -> None: ...

    async def close(self) -> None:
        """Finishes running transactions, then refuses everything. Leases end with the store."""
        if self._closed:
            return
        self._closed = True
        self._stop()
        closed: asyncio.Future[None] = self._loop.create_future()
        self._journal.close(lambda: closed.set_result(None))
        await closed

    def _stop(self) -> None:
        self.leases.stop()
        self._wake_watchers()

    def _check_usable(self) -> None:
        if self._closed or self.failure is not None:
            raise UnavailableError(self.failure or "the metadata store is closed")

    def _submit(self, waiting: _QueuedTransaction) -> asyncio.Future[TransactionResult]:
        self._queue.append(waiting)
        if not self._writing:
            self._write_group()
        return waiting.answer

    def _write_group(self) -> None:
        """Evaluates all queued transactions, in order, and passes their changes to the journal."""
        group, self._queue = self._queue, []
        staged = self.engine.stage()
        for waiting in group:
            self._evaluate(staged, waiting)
        if staged.batches:
            self._writing = True
            self._journal.write(staged.batches, lambda failure: self._on_written(staged, group, failure))
        else:
            self.engine.commit(staged)
            _answer(group)

    def _evaluate(self, staged: Staged, waiting: _QueuedTransaction) -> None:
        if waiting.ended_lease != NO_LEASE:
            self.engine.stage_lease_end(staged, waiting.ended_lease)
            waiting.result = TransactionResult(succeeded=True, revision=staged.revision)
            return
        try:
            waiting.result = self.engine.evaluate(staged, waiting.compares, waiting.operations, waiting.otherwise)
        except LeaseGoneError as error:
            _refuse(waiting, error)

    def _on_written(self, staged: Staged, group: list[_QueuedTransaction], failure: WriteFailedError | None) -> None:
        self._writing = False
        if failure is None:
            self.engine.commit(staged)
            _answer(group)
            self._wake_watchers()
        else:
            self._on_write_failed(group, failure)
        if self._queue:
            self._write_group()

    def _on_write_failed(self, group: list[_QueuedTransaction], failure: WriteFailedError) -> None:
        """Refuses the group. If the state of the disk is unknown, the store fails for good."""
        if failure.applied is None:
            self.failure = f"the metadata store failed: {failure}"
            waiting_too, self._queue = self._queue, []
            for waiting in waiting_too:
                _refuse(waiting, UnavailableError(self.failure))
            self._stop()
        for waiting in group:
            if waiting.ended_lease != NO_LEASE and failure.applied is False:
                self._loop.call_later(
                    LEASE_END_RETRY_MS / 1000, self._retry_lease_end, waiting.ended_lease, context=self._context
                )
            _refuse(
                waiting, AmbiguousError(str(failure)) if failure.applied is None else UnavailableError(str(failure))
            )

    def _end_lease(self, lease: LeaseId) -> None:
        self._submit(_QueuedTransaction(self._loop.create_future(), ended_lease=lease))

    def _retry_lease_end(self, lease: LeaseId) -> None:
        if not self._closed and self.failure is None:
            self._end_lease(lease)

    async def _wait_for_change(self) -> None:
        woken: asyncio.Future[None] = self._loop.create_future()
        self._watchers[woken] = None
        try:
            await woken
        finally:
            self._watchers.pop(woken, None)

    def _wake_watchers(self) -> None:
        watchers, self._watchers = self._watchers, {}
        for woken in watchers:
            if not woken.done():
                woken.set_result(None)


def _answer(group: list[_QueuedTransaction]) -> None:
    for waiting in group:
        if not waiting.answer.done():
            assert waiting.result is not None, "a transaction was written without a result"
            waiting.answer.set_result(waiting.result)


def _refuse(waiting: _QueuedTransaction, error: MetadataStoreError) -> None:
    if not waiting.answer.done():
        waiting.answer.set_exception(error)
        waiting.answer.exception()  # The asking task may be gone; no other needs the answer.
