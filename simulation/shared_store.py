"""The metadata store of a simulated cluster, and each broker's link to it.

One `MemoryStore` stands for etcd: it outlives the brokers, like messages to and from it. A `StoreLink` is the link of
one process, with these faults:

* requests and responses are slow, or so late that the client has given up; the request is executed anyway

* a request or its response is lost: after a while its outcome is unknown

* the link is cut, in one direction or both; a watch is then silent, or ends if its connection breaks

* watches lag, for each broker separately

* the store is down for a while (`stop`, `start`): no lease ends meanwhile, and all start again, as in etcd

`SharedStore.image` is the truth: the metadata in the store, which brokers see a little later.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from contextvars import Context
from typing import Any, Final, NamedTuple, TypeVar

from lowtide.metadata.errors import StoreWentBackError
from lowtide.metadata.image import MetadataImage
from lowtide.metadata.image_change import apply_batch, load_image
from lowtide.metadata.store import (
    AmbiguousError,
    Batch,
    Compare,
    KeyValue,
    LeaseId,
    MetadataStoreError,
    Operation,
    Revision,
    TransactionResult,
    UnavailableError,
)
from lowtide.runtime.random import Random
from lowtide.runtime.simulated_loop import SimulatedLoop
from lowtide.runtime.simulated_ports import SimulatedClock
from lowtide.simulation.memory_store import MemoryDisk, MemoryStore

T = TypeVar("T")

PREFIX: Final = b"/lowtide/"
REQUEST_TIMEOUT_S: Final = 2.0
"""The timeout of requests, as in the session with etcd."""

SURPLUS: Final = 3
"""The initial length of etcd's raft log beyond the revisions."""

HELD_UP_S: Final = 3.0
"""The maximum delay of a request."""

_BATCHES_AT_ONCE: Final = 1000
_LOOK_S: Final = 0.02


class StoreSnapshot(NamedTuple):
    """A backup of the store."""

    keys: dict[bytes, KeyValue]
    revision: Revision


class SharedStore:
    """The store that all brokers share, and its pending messages."""

    def __init__(self, loop: SimulatedLoop, random: Random) -> None:
        self.loop = loop
        self.disk = MemoryDisk()
        self.image = MetadataImage()
        self.is_away = False
        self.restores = 0
        self.raft_surplus = SURPLUS
        self._random = random
        self._store = MemoryStore(self.disk, clock=SimulatedClock(loop), random=random, loop=loop)
        # Of no process: messages here are delivered even if their senders are stopped or dead.
        self._context = Context()
        self._carried: dict[asyncio.Task[None], None] = {}

    @property
    def store(self) -> MemoryStore:
        """The store. Errors: UnavailableError while it is down."""
        if self.is_away:
            raise UnavailableError("simulated: the metadata store is away")
        return self._store

    def follow(self, listener: Callable[[MetadataImage, Batch], None]) -> None:
        """Updates `image`. Calls `listener` after each change, with the previous image."""
        engine = self._store.engine
        if engine.revision == self.image.revision:
            return
        for batch in engine.batches_from(self.image.revision + 1, _BATCHES_AT_ONCE):
            before = self.image
            self.image, _ = apply_batch(before, batch, prefix=PREFIX)
            listener(before, batch)

    def stop(self) -> None:
        """Stops the store. Writes in progress are completed."""
        self.is_away = True
        self._store.leases.suspend()

    def start(self) -> None:
        if self.is_away:
            self.is_away = False
            self._store.restart_leases()

    def snapshot(self) -> StoreSnapshot:
        return StoreSnapshot(dict(self.disk.keys), self.disk.revision)

    def restore(self, snapshot: StoreSnapshot, *, copied: bool = False) -> None:
        """Restores a backup while the store is down: from a snapshot, or, unsupported, its files.

        Registrations of that time are gone, because their leases have ended.
        """
        assert self.is_away, "a store that answers can't be put back"
        self._store.crash()
        self.disk = MemoryDisk()
        self.disk.keys, self.disk.revision, self.disk.boots = dict(snapshot.keys), snapshot.revision, self.restores + 2
        self.restores += 1
        self.raft_surplus = SURPLUS if copied else SURPLUS + 1 - snapshot.revision
        self._store = MemoryStore(self.disk, clock=SimulatedClock(self.loop), random=self._random, loop=self.loop)
        self._store.leases.suspend()
        self.image = load_image(self.disk.keys.values(), self.disk.revision, prefix=PREFIX)

    async def answer_surplus(self) -> int:
        await self.store.revision()
        return self.raft_surplus

    def carry(self, work: Callable[[], Awaitable[None]]) -> None:
        """Runs something that belongs to no process."""

        async def run() -> None:
            await work()

        task = self.loop.create_task(run(), name="on the way to the store", context=self._context.copy())
        self._carried[task] = None
        task.add_done_callback(self._forget, context=self._context.copy())

    def _forget(self, task: asyncio.Task[None]) -> None:
        del self._carried[task]


class StoreLink:
    """The `OwnedStore` of one process. Its faults can be set at any time, and survive `renew`."""

    def __init__(self, shared: SharedStore, random: Random, effects: Counter[str]) -> None:
        """`effects` counts the faults."""
        self._shared = shared
        self._random = random
        self._effects = effects
        self._breaks = 0
        self._revision = 0
        self._seen_restores = shared.restores
        self._least_surplus: int | None = None
        self._closed = False
        self.delay_ms = (0.1, 1.5)
        self.watch_lag_ms = (0.0, 1.0)
        self.requests_are_cut = False
        self.answers_are_cut = False
        self.loss = 0.0
        """The share of requests with one of the fates of `_fate`."""

    @property
    def failure(self) -> str | None:
        return None

    @property
    def is_cut(self) -> bool:
        """Whether responses and watches are cut."""
        return self.requests_are_cut or self.answers_are_cut

    def renew(self) -> StoreLink:
        """Prepares the link for the next process."""
        link = StoreLink(self._shared, self._random, self._effects)
        link.delay_ms, link.watch_lag_ms, link.loss = self.delay_ms, self.watch_lag_ms, self.loss
        link.requests_are_cut, link.answers_are_cut = self.requests_are_cut, self.answers_are_cut
        self._closed = True
        return link

    def heal(self) -> None:
        self.delay_ms, self.watch_lag_ms, self.loss = (0.1, 1.5), (0.0, 1.0), 0.0
        self.requests_are_cut = self.answers_are_cut = False

    def carry(self, work: Callable[[], Awaitable[None]]) -> None:
        self._shared.carry(work)

    def break_watches(self) -> None:
        """Breaks the connection of the watches: each ends with an error."""
        self._breaks += 1

    async def get(self, key: bytes) -> KeyValue | None:
        """See `MetadataStore.get`."""
        return await self._ask(lambda store: store.get(key), changes=False)

    async def range(self, prefix: bytes) -> tuple[list[KeyValue], Revision]:
        """See `MetadataStore.range`."""
        return await self._ask(lambda store: store.range(prefix), changes=False)

    async def revision(self) -> Revision:
        """See `MetadataStore.revision`."""
        return await self._ask(lambda store: store.revision(), changes=False)

    async def transact(
        self, compares: Sequence[Compare], operations: Sequence[Operation], otherwise: Sequence[Operation] = ()
    ) -> TransactionResult:
        """See `MetadataStore.transact`."""
        return await self._ask(lambda store: store.transact(compares, operations, otherwise), changes=True)

    async def lease_grant(self, time_to_live_ms: int) -> LeaseId:
        """See `MetadataStore.lease_grant`."""
        return await self._ask(lambda store: store.lease_grant(time_to_live_ms), changes=False)

    async def lease_keep_alive(self, lease: LeaseId) -> None:
        """See `MetadataStore.lease_keep_alive`."""
        await self._ask(lambda store: store.lease_keep_alive(lease), changes=False)

    async def lease_revoke(self, lease: LeaseId) -> None:
        """See `MetadataStore.lease_revoke`."""
        await self._ask(lambda store: store.lease_revoke(lease), changes=True)

    async def watch(self, prefix: bytes, start_revision: Revision) -> AsyncGenerator[Batch, None]:
        """See `MetadataStore.watch`."""
        breaks = self._breaks
        await asyncio.sleep(self._delay_s())
        async with aclosing(self._shared.store.watch(prefix, start_revision)) as batches:
            async for batch in batches:
                await asyncio.sleep(self._random.uniform(*self.watch_lag_ms) / 1000)
                if self.is_cut or self._shared.is_away:
                    self._effects["watch held up"] += 1
                while self.is_cut or self._shared.is_away:  # noqa: ASYNC110 - virtual time: looking again costs nothing
                    await asyncio.sleep(_LOOK_S)
                if self._breaks != breaks:
                    self._effects["watch broken"] += 1
                    raise UnavailableError("simulated: the connection broke")
                yield batch

    @property
    def connections(self) -> int:
        """See `MetadataStore.connections`."""
        return 1 + self._breaks + self._shared.restores

    async def raft_surplus(self) -> int | None:
        """See `MetadataStore.raft_surplus`."""
        return await self._ask(lambda _store: self._shared.answer_surplus(), changes=False)

    def require_raft_surplus(self, least: int) -> None:
        """See `MetadataStore.require_raft_surplus`."""
        self._least_surplus = least

    async def close(self) -> None:
        """See `OwnedStore.close`."""
        self._closed = True

    async def _ask(self, operation: Callable[[MemoryStore], Awaitable[T]], *, changes: bool) -> T:
        if self._closed:
            raise UnavailableError("simulated: the session is closed")
        answer: asyncio.Future[Any] = self._shared.loop.create_future()
        fate = self._fate() if self.loss else None
        self._shared.carry(lambda: self._carry(operation, answer, fate))
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                result: T = await answer
        except TimeoutError:
            message = "simulated: no answer"
            if changes:
                raise AmbiguousError(message) from None
            raise UnavailableError(message) from None
        return result

    def _fate(self) -> str | None:
        if self._random.random() >= self.loss:
            return None
        fate = self._random.choice(("lost", "unanswered", "held up", "refused"))
        self._effects[f"store request {fate}"] += 1
        return fate

    async def _carry(
        self, operation: Callable[[MemoryStore], Awaitable[Any]], answer: asyncio.Future[Any], fate: str | None
    ) -> None:
        await asyncio.sleep(self._delay_s() if fate != "held up" else self._random.uniform(0, HELD_UP_S))
        if self.requests_are_cut or fate == "lost":
            self._effects["store request cut off"] += self.requests_are_cut
            return
        outcome: Any
        try:
            if fate == "refused":
                raise UnavailableError("simulated: not now")
            self._check_connection()
            outcome = await operation(self._shared.store)
            self._check_revision(outcome)
        except (MetadataStoreError, StoreWentBackError) as error:
            outcome = error
        await asyncio.sleep(self._delay_s())
        if self.answers_are_cut or fate == "unanswered":
            self._effects["store answer cut off"] += self.answers_are_cut
            return
        if not answer.done():
            if isinstance(outcome, MetadataStoreError | StoreWentBackError):
                answer.set_exception(outcome)
                answer.exception()  # The broker that asked may be dead.
            else:
                answer.set_result(outcome)

    def _check_connection(self) -> None:
        if self._least_surplus is not None and self._shared.raft_surplus < self._least_surplus:
            raise StoreWentBackError("simulated: the store was restored from a snapshot")

    def _check_revision(self, outcome: Any) -> None:
        revision = outcome[1] if isinstance(outcome, tuple) else getattr(outcome, "revision", 0)
        if self._seen_restores != self._shared.restores and 0 < revision < self._revision:
            raise StoreWentBackError(f"simulated: the store went back from revision {self._revision} to {revision}")
        self._seen_restores = self._shared.restores
        self._revision = max(self._revision, revision)

    def _delay_s(self) -> float:
        return self._random.uniform(*self.delay_ms) / 1000
