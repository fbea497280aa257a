"""The machines of metadata stores: one for each engine, for the tests that all engines must pass."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Coroutine
from pathlib import Path
from random import Random
from typing import Any

from lowtide.metadata.embedded import METADATA_FILE, EmbeddedStore
from lowtide.metadata.engine import HISTORY_REVISIONS
from lowtide.metadata.served_store import ServedStore
from lowtide.metadata.store import Delete, MetadataStore, Operation, Put, TransactionResult
from lowtide.metadata.store_server import ServedConnection, serve_store
from lowtide.runtime.clock import SystemClock
from lowtide.runtime.filesystem import OsFileSystem
from lowtide.runtime.simulated_ports import SimulatedClock
from lowtide.simulation.memory_store import MemoryClient, MemoryDisk, MemoryStore
from tests.etcd import EtcdProcess


async def put(store: MetadataStore, *operations: Operation) -> TransactionResult:
    return await store.transact([], operations)


class Machine:
    """The machine of a store: opens it, and opens it again as the next process does.

    `base`: the revision of an empty store. `lease_ms`: about the shortest possible lease. `leases_end_with_it`: whether
    closing a store ends its leases.
    """

    base = 0
    lease_ms = 400
    leases_end_with_it = True

    def __init__(self) -> None:
        self.opened: list[Any] = []

    async def open(self) -> MetadataStore:
        raise NotImplementedError

    async def forget(self) -> None:
        """Make the store discard old revisions: local stores keep a fixed number."""
        for _ in range(40):
            await asyncio.gather(*(put(self.opened[-1], Put(b"k", b"")) for _ in range(HISTORY_REVISIONS // 16)))

    async def close(self) -> None:
        for store in self.opened:
            await store.close()

    async def end(self) -> None:
        """Close what outlives a process too."""
        await self.close()


class MemoryMachine(Machine):
    def __init__(self) -> None:
        super().__init__()
        self.disk = MemoryDisk()

    async def open(self) -> MetadataStore:
        loop = asyncio.get_running_loop()
        self.opened.append(MemoryStore(self.disk, clock=SimulatedClock(loop), random=Random(1), loop=loop))
        return self.opened[-1]


class ClientMachine(MemoryMachine):
    async def open(self) -> MetadataStore:
        await super().open()
        return MemoryClient(self.opened[-1], latency_ms=0.5)


class EmbeddedMachine(Machine):
    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.path = str(folder / METADATA_FILE)

    async def open(self) -> MetadataStore:
        self.opened.append(await EmbeddedStore.open(self.path, filesystem=OsFileSystem(), clock=SystemClock()))
        return self.opened[-1]


class ServedMachine(Machine):
    """The store is in a process that continues; each `open` is a client's, over a connection of its own."""

    leases_end_with_it = False

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.embedded = EmbeddedMachine(folder)
        self.connections: list[ServedConnection] = []
        self.faults: list[str] = []

    async def connect(self) -> socket.socket:
        """A connection that is served; returns the client's end."""
        if not self.embedded.opened:
            await self.embedded.open()
        ours, theirs = socket.socketpair()
        self.connections.append(await serve_store(self.embedded.opened[-1], ours, self.faults.append))
        return theirs

    async def open(self) -> MetadataStore:
        self.opened.append(await ServedStore.open(await self.connect()))
        return self.opened[-1]

    async def end(self) -> None:
        await self.close()
        for connection in self.connections:
            await connection.close()
        await self.embedded.close()


class EtcdMachine(Machine):
    """One etcd serves all tests: the keys of the previous test are deleted, and revisions continue."""

    lease_ms = 1000
    leases_end_with_it = False

    def __init__(self, etcd: EtcdProcess) -> None:
        super().__init__()
        self.etcd = etcd

    async def open(self) -> MetadataStore:
        from lowtide.metadata.etcd import EtcdStore  # only where its packages are installed

        store = await EtcdStore.open([self.etcd.endpoint])
        if not self.opened:
            for pair in (await store.range(b""))[0]:
                await put(store, Delete(pair.key))
            _, self.base = await store.range(b"")
        self.opened.append(store)
        return store

    async def forget(self) -> None:
        for _ in range(10):
            revision = (await put(self.opened[-1], Put(b"k", b""))).revision
        self.etcd.compact(revision)


Scenario = Callable[[Machine], Coroutine[Any, Any, None]]
Run = Callable[[Scenario], None]
