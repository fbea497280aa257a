"""A metadata store inside this process: the engine, group commit, lease timers and watches, over a journal that makes things durable.

The journal is SQLite in a broker and a simulated disk in the simulator, so both run the code in this module. At most one group of
transactions is being written at a time; those that come meanwhile are evaluated together when it is done. Reads see what is in
force, and nothing is in force before it is durable.

Guards: an answered transaction is durable; a failed write leaves nothing behind; a watch sees each revision once, in order.
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
"""A lease timer that fires later than this shows that the process stood still (SIGSTOP, suspended laptop, swapping): its sessions
could not renew, so the time of all leases starts again. A session counts its own fencing from what it sent, so a longer lease is safe."""

GRACE_MS: Final = 50
"""How long a lease whose time is over may still be renewed. A loop that was held rings the timers of leases before it serves the
sessions that renew them: those get a turn first."""

MAX_WATCH_BATCHES: Final = 256
"""Batches that a watch takes from the history at once."""

LEASE_END_RETRY_MS: Final = 1000
"""After this time the deletion of a lease's keys is tried again, when the disk was full."""

MAX_QUEUED_TRANSACTIONS: Final = 10_000
"""Transactions that may wait for the disk; more are refused as unavailable."""


class WriteFailedError(Exception):
    """The journal could not write. `applied`: False when certainly nothing was written, None when that isn't known."""

    def __init__(self, reason: str, *, applied: bool | None) -> None:
        """`reason` says which file and why."""
        super().__init__(reason)
        self.applied = applied


class Journal(Protocol):
    """Makes batches durable, whole groups at a time."""

    def write(self, batches: Sequence[Batch], on_done: Callable[[WriteFailedError | None], None]) -> None:
        """Write all of `batches` atomically; `on_done` is called later, in the event loop."""
        ...

    def close(self, on_closed: Callable[[], None]) -> None:
        """Finish what was begun and let go of the files; `on_closed` is called later, in the event loop."""
        ...


class _Waiting(msgspec.Struct):
    """A transaction, or the end of a lease (`ended_lease`), that waits for its turn and then for the disk."""

    answer: asyncio.Future[TransactionResult]
    compares: Sequence[Compare] = ()
    operations: Sequence[Operation] = ()
    otherwise: Sequence[Operation] = ()
    ended_lease: LeaseId = NO_LEASE
    result: TransactionResult | None = None


class LocalStore:
    """A `MetadataStore` in this process. Several sessions may share it."""

    def __init__(self, *, engine: Engine, journal: Journal, clock: Clock, loop: asyncio.AbstractEventLoop) -> None:
        """Serve `engine`, whose state is what the journal has durable."""
        self._engine = engine
        self._journal = journal
        self._clock = clock
        self._loop = loop
        # Several processes of a simulation may share a store that outlives them: its timers must not die with one that
        # called it.
        self._context = copy_context()
        self._queue: list[_Waiting] = []
        self._writing = False
        self._failed: str | None = None
        self._closed = False
        self._lease_timer: asyncio.TimerHandle | None = None
        self._lease_timer_at_ms = 0
        self._watchers: dict[asyncio.Future[None], None] = {}

    @property
    def failure(self) -> str | None:
        """Why nothing can be decided on this store any more, until it is opened again; None while all is well."""
        return self._failed

    # Reading

    async def get(self, key: bytes) -> KeyValue | None:
        """See `MetadataStore.get`."""
        self._check_usable()
        return self._engine.keys.get(key)

    async def range(self, prefix: bytes) -> tuple[list[KeyValue], Revision]:
        """See `MetadataStore.range`."""
        self._check_usable()
        return self._engine.range(prefix), self._engine.revision

    async def revision(self) -> Revision:
        """See `MetadataStore.revision`."""
        self._check_usable()
        return self._engine.revision

    async def watch(self, prefix: bytes, start_revision: Revision) -> AsyncGenerator[Batch, None]:
        """See `MetadataStore.watch`. The history is the queue: a slow watcher costs no memory of its own."""
        assert start_revision >= 1, f"watch from revision {start_revision}"
        next_revision = start_revision
        while True:
            self._check_usable()
            batches = (
                self._engine.batches_from(next_revision, MAX_WATCH_BATCHES)
                if next_revision <= self._engine.revision
                else []
            )
            for batch in batches:
                next_revision = batch.revision + 1
                events = tuple(event for event in batch.events if event.key.startswith(prefix))
                if events:
                    yield Batch(batch.revision, events)
            if not batches:
                await self._wait_for_change()

    # Writing

    async def transact(
        self, compares: Sequence[Compare], operations: Sequence[Operation], otherwise: Sequence[Operation] = ()
    ) -> TransactionResult:
        """See `MetadataStore.transact`."""
        check_transaction(compares, operations, otherwise)
        self._check_usable()
        if len(self._queue) >= MAX_QUEUED_TRANSACTIONS:
            message = f"{len(self._queue)} transactions wait for the disk"
            raise UnavailableError(message)
        return await self._submit(_Waiting(self._loop.create_future(), compares, operations, otherwise))

    async def lease_grant(self, time_to_live_ms: int) -> LeaseId:
        """See `MetadataStore.lease_grant`."""
        self._check_usable()
        lease = self._engine.grant_lease(time_to_live_ms, self._clock.monotonic_ms())
        self._arm_lease_timer()
        return lease

    async def lease_keep_alive(self, lease: LeaseId) -> None:
        """See `MetadataStore.lease_keep_alive`. Touches memory only."""
        self._check_usable()
        self._engine.keep_lease_alive(lease, self._clock.monotonic_ms())

    async def lease_revoke(self, lease: LeaseId) -> None:
        """See `MetadataStore.lease_revoke`."""
        self._check_usable()
        if self._engine.begin_lease_end(lease):
            await self._submit(_Waiting(self._loop.create_future(), ended_lease=lease))

    @property
    def connections(self) -> int:
        """See `MetadataStore.connections`: there is no way to go."""
        return 1

    async def raft_surplus(self) -> int | None:
        """See `MetadataStore.raft_surplus`: there is no raft log."""
        return None

    def require_raft_surplus(self, least: int) -> None:
        """See `MetadataStore.require_raft_surplus`."""

    async def close(self) -> None:
        """Finish what was begun, then refuse everything. Leases end with the store."""
        if self._closed:
            return
        self._closed = True
        self._stop()
        closed: asyncio.Future[None] = self._loop.create_future()
        self._journal.close(lambda: closed.set_result(None))
        await closed

    def abandon(self) -> None:
        """Stop at once, as a process that was killed: nothing is answered or expires any more."""
        self._closed = True
        self._stop()
        self._queue.clear()

    @property
    def engine(self) -> Engine:
        """What is in force, for tests."""
        return self._engine

    def cancel_lease_timer(self) -> None:
        """Let no lease end."""
        if self._lease_timer is not None:
            self._lease_timer.cancel()
            self._lease_timer = None

    def _stop(self) -> None:
        self.cancel_lease_timer()
        self._wake_watchers()

    def _check_usable(self) -> None:
        if self._closed or self._failed is not None:
            raise UnavailableError(self._failed or "the metadata store is closed")

    # Group commit

    def _submit(self, waiting: _Waiting) -> asyncio.Future[TransactionResult]:
        self._queue.append(waiting)
        if not self._writing:
            self._write_group()
        return waiting.answer

    def _write_group(self) -> None:
        """Evaluate all that wait, in order, and hand what they change to the journal."""
        group, self._queue = self._queue, []
        staged = self._engine.stage()
        for waiting in group:
            self._evaluate(staged, waiting)
        if staged.batches:
            self._writing = True
            self._journal.write(staged.batches, lambda failure: self._on_written(staged, group, failure))
        else:
            self._engine.commit(staged)
            _answer(group)

    def _evaluate(self, staged: Staged, waiting: _Waiting) -> None:
        if waiting.ended_lease != NO_LEASE:
            self._engine.stage_lease_end(staged, waiting.ended_lease)
            waiting.result = TransactionResult(succeeded=True, revision=staged.revision)
            return
        try:
            waiting.result = self._engine.evaluate(staged, waiting.compares, waiting.operations, waiting.otherwise)
        except LeaseGoneError as error:
            _refuse(waiting, error)

    def _on_written(self, staged: Staged, group: list[_Waiting], failure: WriteFailedError | None) -> None:
        self._writing = False
        if failure is None:
            self._engine.commit(staged)
            _answer(group)
            self._wake_watchers()
        else:
            self._on_write_failed(group, failure)
        if self._queue:
            self._write_group()

    def _on_write_failed(self, group: list[_Waiting], failure: WriteFailedError) -> None:
        """Refuse the group. When it is unknown what the disk holds, nothing may be decided on this state any more."""
        if failure.applied is None:
            self._failed = f"the metadata store failed: {failure}"
            waiting_too, self._queue = self._queue, []
            for waiting in waiting_too:
                _refuse(waiting, UnavailableError(self._failed))
            self._stop()
        for waiting in group:
            if waiting.ended_lease != NO_LEASE and failure.applied is False:
                self._loop.call_later(
                    LEASE_END_RETRY_MS / 1000, self._retry_lease_end, waiting.ended_lease, context=self._context
                )
            _refuse(
                waiting, AmbiguousError(str(failure)) if failure.applied is None else UnavailableError(str(failure))
            )

    # Leases

    def _arm_lease_timer(self) -> None:
        """Have one timer for the lease that ends first.

        Keep-alives don't touch it: it fires early, and is set again.
        """
        deadline_ms = self._engine.next_lease_deadline()
        if deadline_ms is None or self._closed or self._failed is not None:
            return
        if self._lease_timer is not None:
            if self._lease_timer_at_ms <= deadline_ms:
                return
            self._lease_timer.cancel()
        self._set_lease_timer(deadline_ms, self._on_lease_timer)

    def _set_lease_timer(self, at_ms: int, then: Callable[[], None]) -> None:
        self._lease_timer_at_ms = at_ms
        delay_ms = (
            max(0, at_ms - self._clock.monotonic_ms()) + 1
        )  # Not before: a loop's time may be a little behind the clock's.
        self._lease_timer = self._loop.call_later(delay_ms / 1000, then, context=self._context)

    def _on_lease_timer(self) -> None:
        """The time of a lease may be over. If it is, its holder gets a turn to renew it."""
        self._lease_timer = None
        now_ms = self._clock.monotonic_ms()
        if not self._has_stalled(now_ms) and self._engine.expired_leases(now_ms):
            self._set_lease_timer(now_ms + GRACE_MS, self._end_leases)
        else:
            self._arm_lease_timer()

    def _end_leases(self) -> None:
        self._lease_timer = None
        now_ms = self._clock.monotonic_ms()
        if not self._has_stalled(now_ms):
            for lease in self._engine.expired_leases(now_ms - GRACE_MS):
                self._engine.begin_lease_end(lease)
                self._submit(_Waiting(self._loop.create_future(), ended_lease=lease))
        self._arm_lease_timer()

    def _has_stalled(self, now_ms: int) -> bool:
        """Whether the lease timer rang much too late; then all leases begin again."""
        if now_ms - self._lease_timer_at_ms <= STALL_MS:
            return False
        self._engine.restart_leases(now_ms)
        return True

    def _retry_lease_end(self, lease: LeaseId) -> None:
        if not self._closed and self._failed is None:
            self._submit(_Waiting(self._loop.create_future(), ended_lease=lease))

    # Watches

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


def _answer(group: list[_Waiting]) -> None:
    for waiting in group:
        if not waiting.answer.done():
            assert waiting.result is not None, "a transaction was written without a result"
            waiting.answer.set_result(waiting.result)


def _refuse(waiting: _Waiting, error: MetadataStoreError) -> None:
    if not waiting.answer.done():
        waiting.answer.set_exception(error)
        waiting.answer.exception()  # The task that asked may be gone; no other one needs the answer.
