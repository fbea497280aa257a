"""A metadata store in memory: deterministic, without threads, with faults.

It has the three parts of a real machine: `MemoryDisk` is what survives a power cut; `MemoryStore` is the store in one
simulated process and dies with it; `MemoryClient` is one broker's connection to a shared store, which can be cut, slow
or ambiguous. A broker with an embedded store is a disk and a store; a cluster on etcd is one store that outlives the
brokers, and a client for each.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from contextvars import copy_context
from typing import TYPE_CHECKING

from lowtide.metadata.engine import Engine
from lowtide.metadata.local import LocalStore, WriteFailedError
from lowtide.metadata.store import (
    AmbiguousError,
    Batch,
    Compare,
    KeyValue,
    LeaseId,
    Operation,
    Revision,
    TransactionResult,
    UnavailableError,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence

    from lowtide.runtime.clock import Clock
    from lowtide.runtime.random import Random


class MemoryDisk:
    """Durable state: keys, revision and the number of boots. Survives the process that writes it."""

    def __init__(self) -> None:
        self.keys: dict[bytes, KeyValue] = {}
        self.revision: Revision = 0
        self.boots = 0
        self.writes = 0
        self._failure: WriteFailedError | None = None

    def fail_next(self, *, applied: bool | None) -> None:
        """Makes the next write fail without effect. `applied`: False is a full disk, None an unknown outcome."""
        self._failure = WriteFailedError("simulated disk failure", applied=applied)

    def begin_life(self) -> Engine:
        """Returns the state for a new process, and counts one more boot."""
        self.boots += 1
        return Engine(boot=self.boots, revision=self.revision, keys=self.keys.values())

    def write(self, batches: Sequence[Batch]) -> WriteFailedError | None:
        """Makes `batches` durable, all or none."""
        failure, self._failure = self._failure, None
        if failure is not None:
            return failure
        self.writes += 1
        for batch in batches:
            assert batch.revision == self.revision + 1, f"revision {batch.revision} after {self.revision}"
            self.revision = batch.revision
            for event in batch.events:
                if event.value is None:
                    self.keys.pop(event.key, None)
                else:
                    self.keys[event.key] = KeyValue(
                        event.key, event.value, event.create_revision, event.modify_revision, event.lease
                    )
        return None


class _MemoryJournal:
    """Writes to a `MemoryDisk` after some simulated time, and answers later: a crash in between loses the answer."""

    def __init__(
        self, disk: MemoryDisk, loop: asyncio.AbstractEventLoop, random: Random, write_ms: tuple[float, float]
    ) -> None:
        self._disk = disk
        self._loop = loop
        self._random = random
        self._write_ms = write_ms
        self._context = copy_context()
        self._pending: dict[asyncio.TimerHandle, None] = {}

    def write(self, batches: Sequence[Batch], on_done: Callable[[WriteFailedError | None], None]) -> None:
        def write() -> None:
            failure = self._disk.write(batches)
            self._later(lambda: on_done(failure))

        self._later(write)

    def close(self, on_closed: Callable[[], None]) -> None:
        self._loop.call_later(self._write_ms[1] * 2 / 1000, on_closed, context=self._context)

    def stop(self) -> None:
        for timer in self._pending:
            timer.cancel()
        self._pending.clear()

    def _later(self, callback: Callable[[], None]) -> None:
        def fire() -> None:
            self._pending.pop(timer, None)
            callback()

        timer = self._loop.call_later(self._random.uniform(*self._write_ms) / 2000, fire, context=self._context)
        self._pending[timer] = None


class MemoryStore(LocalStore):
    """The metadata store of one simulated process, or of a simulated etcd."""

    def __init__(
        self,
        disk: MemoryDisk,
        *,
        clock: Clock,
        random: Random,
        loop: asyncio.AbstractEventLoop,
        write_ms: tuple[float, float] = (0.1, 1.0),
    ) -> None:
        """Starts from `disk`, without the keys of earlier leases. A write takes a time within `write_ms`."""
        engine = disk.begin_life()
        staged = engine.stage()
        engine.stage_orphans(staged)
        failure = disk.write(staged.batches) if staged.batches else None
        if failure is not None:
            raise failure
        engine.commit(staged)
        self._memory_journal = _MemoryJournal(disk, loop, random, write_ms)
        super().__init__(engine=engine, journal=self._memory_journal, clock=clock, loop=loop)

    def restart_leases(self) -> None:
        """Restarts the time of every lease when the store is back, as etcd does."""
        self.engine.restart_leases(self._clock.monotonic_ms())
        self.leases.arm()

    def crash(self) -> None:
        """Dies like a killed process: unwritten data is lost; what was written but not answered stays."""
        self._memory_journal.stop()
        self._closed = True
        self._stop()
        self._queue.clear()


class MemoryClient:
    """One broker's `MetadataStore` in a simulated cluster: the shared store over a faulty network.

    While `cut` is True, nothing gets through, and watches are silent.
    """

    def __init__(self, store: LocalStore, *, latency_ms: float = 0.0) -> None:
        """Reaches `store` with this latency each way."""
        self._store = store
        self._latency_s = latency_ms / 1000
        self._script: list[tuple[str, int]] = []
        self.cut = False
        self.transactions = 0

    def fail_next(self, how: str, *, after: int = 0) -> None:
        """Makes a transaction fail after `after` others.

        `how`: "unavailable" (not sent), "lost" (sent, never applied), "unanswered" (applied).
        """
        assert how in {"unavailable", "lost", "unanswered"}, how
        self._script.append((how, self.transactions + after))

    async def get(self, key: bytes) -> KeyValue | None:
        await self._cross()
        return await self._store.get(key)

    async def range(self, prefix: bytes) -> tuple[list[KeyValue], Revision]:
        await self._cross()
        return await self._store.range(prefix)

    async def revision(self) -> Revision:
        await self._cross()
        return await self._store.revision()

    async def transact(
        self, compares: Sequence[Compare], operations: Sequence[Operation], otherwise: Sequence[Operation] = ()
    ) -> TransactionResult:
        await self._cross()
        fault = self._next_fault()
        if fault == "unavailable":
            message = "simulated: not sent"
            raise UnavailableError(message)
        if fault == "lost":
            message = "simulated: lost on the way"
            raise AmbiguousError(message)
        result = await self._store.transact(compares, operations, otherwise)
        if fault == "unanswered" or self.cut:
            message = "simulated: the answer was lost"
            raise AmbiguousError(message)
        return result

    async def lease_grant(self, time_to_live_ms: int) -> LeaseId:
        await self._cross()
        return await self._store.lease_grant(time_to_live_ms)

    async def lease_keep_alive(self, lease: LeaseId) -> None:
        await self._cross()
        await self._store.lease_keep_alive(lease)

    async def lease_revoke(self, lease: LeaseId) -> None:
        await self._cross()
        await self._store.lease_revoke(lease)

    @property
    def connections(self) -> int:
        return self._store.connections

    async def raft_surplus(self) -> int | None:
        await self._cross()
        return await self._store.raft_surplus()

    def require_raft_surplus(self, least: int) -> None: ...

    async def watch(self, prefix: bytes, start_revision: Revision) -> AsyncGenerator[Batch, None]:
        """Yields batches; they wait while the connection is cut."""
        async with aclosing(self._store.watch(prefix, start_revision)) as batches:
            async for batch in batches:
                while self.cut:  # noqa: ASYNC110 - virtual time: polling costs nothing
                    await asyncio.sleep(0.02)
                yield batch

    async def _cross(self) -> None:
        await asyncio.sleep(self._latency_s)
        if self.cut:
            message = "simulated: cut off"
            raise UnavailableError(message)

    def _next_fault(self) -> str | None:
        number = self.transactions
        self.transactions += 1
        for entry in self._script:
            if entry[1] <= number:
                self._script.remove(entry)
                return entry[0]
        return None
