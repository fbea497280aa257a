"""One metadata store for several brokers of a process: opened by the first, closed by the last.

Each broker has its own share. A closed share sends nothing to the store any more, not even the end of its broker's
lease, so to the others its broker looks crashed.

Guards: the store is open exactly while a broker has a share; opening and closing never overlap.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from lowtide.metadata.store import UnavailableError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence

    from lowtide.metadata.store import (
        Batch,
        Compare,
        KeyValue,
        LeaseId,
        Operation,
        OwnedStore,
        Revision,
        TransactionResult,
    )


class StoreShares:
    """Hands out shares of a store. Used from one event loop."""

    def __init__(self, open_store: Callable[[], Awaitable[OwnedStore]]) -> None:
        """`open_store` is called for the first share, and for the first one after the last was closed."""
        self._open_store = open_store
        self._turn = asyncio.Lock()
        self._store: OwnedStore | None = None
        self._shares = 0

    async def join(self) -> StoreShare:
        """Returns a share, which the caller closes. Errors: those of opening the store, for all waiting callers."""
        async with self._turn:
            if self._store is None:
                self._store = await self._open_store()
            self._shares += 1
            return StoreShare(self._store, self._leave)

    async def _leave(self) -> None:
        async with self._turn:
            self._shares -= 1
            if self._shares == 0:
                store, self._store = self._store, None
                assert store is not None, "the store was closed while it was shared"
                await store.close()


class StoreShare:
    """One broker's share: a `MetadataStore` until it is closed."""

    def __init__(self, store: OwnedStore, leave: Callable[[], Awaitable[None]]) -> None:
        self._store = store
        self._leave = leave
        self._closed = False

    @property
    def failure(self) -> str | None:
        """Why the store can't be used until all have left it; None otherwise."""
        return self._store.failure

    async def get(self, key: bytes) -> KeyValue | None:
        return await self._open().get(key)

    async def range(self, prefix: bytes) -> tuple[list[KeyValue], Revision]:
        return await self._open().range(prefix)

    async def revision(self) -> Revision:
        return await self._open().revision()

    async def transact(
        self, compares: Sequence[Compare], operations: Sequence[Operation], otherwise: Sequence[Operation] = ()
    ) -> TransactionResult:
        return await self._open().transact(compares, operations, otherwise)

    async def lease_grant(self, time_to_live_ms: int) -> LeaseId:
        return await self._open().lease_grant(time_to_live_ms)

    async def lease_keep_alive(self, lease: LeaseId) -> None:
        await self._open().lease_keep_alive(lease)

    async def lease_revoke(self, lease: LeaseId) -> None:
        await self._open().lease_revoke(lease)

    def watch(self, prefix: bytes, start_revision: Revision) -> AsyncGenerator[Batch, None]:
        """Watches the store. The broker must end its watches when it closes the share."""
        return self._open().watch(prefix, start_revision)

    @property
    def connections(self) -> int:
        return self._store.connections

    async def raft_surplus(self) -> int | None:
        return await self._open().raft_surplus()

    def require_raft_surplus(self, least: int) -> None:
        self._open().require_raft_surplus(least)

    async def close(self) -> None:
        """Leaves the store, which stays open for the others; a second call does nothing."""
        if not self._closed:
            self._closed = True
            await self._leave()

    def _open(self) -> OwnedStore:
        if self._closed:
            raise UnavailableError("the share of the metadata store is closed")
        return self._store
