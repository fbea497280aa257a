"""The outside world of a broker: its clock, files, threads and metadata store, as the real ones or as simulated ones."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

import msgspec

from lowtide.metadata.embedded import METADATA_FILE, EmbeddedStore
from lowtide.metadata.etcd_address import DEFAULT_PREFIX, EtcdAddress
from lowtide.metadata.lease_keeper import KeeperTimes, LeaseKeeper, ThreadLeaseKeeper
from lowtide.metadata.store import MetadataStoreError, OwnedStore
from lowtide.protocol import native
from lowtide.replication.leader_balance import BrokerLoad
from lowtide.runtime.clock import Clock, SystemClock
from lowtide.runtime.committer import MeasuredCommitter, ThreadCommitter
from lowtide.runtime.filesystem import AlreadyLockedError, FileSystem, OsFileSystem
from lowtide.runtime.heap import Heap, system_heap
from lowtide.runtime.heavy_work import HeavyWorker
from lowtide.runtime.process import open_file_limit
from lowtide.runtime.processes import ProcessHeavyWorker
from lowtide.runtime.random import Random, system_random
from lowtide.runtime.thread_usage import ReadUsage, ThreadUsageReader, no_usage
from lowtide.runtime.worker import ThreadWorker, Worker
from lowtide.storage.errors import StorageError


class Neighbours(Protocol):
    """The other brokers of this machine, where one supervisor runs several."""

    @property
    def machine(self) -> Sequence[int]:
        """All brokers of this machine, this one too."""
        ...

    def away(self) -> Sequence[int]:
        """Those that don't serve clients now."""
        ...

    async def pages(self, form: str) -> Sequence[tuple[int, bytes]]:
        """Their pages of metrics, of those that answer soon, by their ids. `form`: the value of a `Format`."""
        ...

    def report(self, load: BrokerLoad) -> None:
        """Have the supervisor know how busy this broker is."""
        ...


class Ports(msgspec.Struct, frozen=True, kw_only=True):
    """The outside world of one broker."""

    loop: asyncio.AbstractEventLoop
    clock: Clock
    filesystem: FileSystem
    random: Random
    worker: Worker
    make_committer: Callable[[str], MeasuredCommitter]
    open_store: Callable[[str], Awaitable[OwnedStore]]
    """Opens the metadata store: the one that is embedded in this log directory, or one that is elsewhere."""
    make_heavy_worker: Callable[[int], HeavyWorker] | None = None
    """Given how many processes it may have. None where nothing is compacted."""
    make_lease_keeper: Callable[[KeeperTimes], LeaseKeeper] | None = None
    """Makes what renews the broker's lease while the loop is held. None where the store is in the same loop."""
    shared_metadata: str = ""
    """What the metadata store is called in messages, if it is elsewhere, where other brokers have it too."""
    metadata_prefix: bytes = DEFAULT_PREFIX
    """What the keys of the cluster's metadata begin with."""
    open_files: int = 1 << 20
    """How many descriptors this broker may use, sockets among them."""
    heap: Heap | None = None
    """The memory of the process; None where nothing can be given back."""
    neighbours: Neighbours | None = None
    """None where a broker has the machine to itself."""
    read_usage: ReadUsage = no_usage
    """What the loop's thread has used; called by that thread."""


def real_ports(loop: asyncio.AbstractEventLoop, etcd: EtcdAddress | None = None) -> Ports:
    """Threads, files and the system's clock; metadata in the first log directory, or in the etcd that is given."""
    filesystem, clock = OsFileSystem(), SystemClock()

    async def open_store(directory: str) -> OwnedStore:
        if etcd is not None:
            return await _open_etcd(etcd)
        try:
            return await EmbeddedStore.open(f"{directory}/{METADATA_FILE}", filesystem=filesystem, clock=clock)
        except AlreadyLockedError as error:
            raise StorageError(directory, "another broker uses this log directory") from error

    return Ports(
        loop=loop,
        clock=clock,
        filesystem=filesystem,
        random=system_random(),
        worker=ThreadWorker(loop),
        make_committer=lambda directory: ThreadCommitter(filesystem, loop, f"committer {directory}", native.compiled),
        open_store=open_store,
        make_heavy_worker=lambda processes: ProcessHeavyWorker(loop, processes),
        make_lease_keeper=None if etcd is None else lambda times: _lease_keeper(etcd, clock, times),
        shared_metadata="" if etcd is None else etcd.text,
        metadata_prefix=DEFAULT_PREFIX if etcd is None else etcd.prefix,
        open_files=open_file_limit(),
        heap=system_heap(),
        read_usage=ThreadUsageReader(),
    )


async def _open_etcd(etcd: EtcdAddress) -> OwnedStore:
    try:
        from lowtide.metadata.etcd import EtcdStore  # noqa: PLC0415 - takes long, and only a broker with etcd has its packages.
    except ImportError as error:
        message = f"etcd as metadata store needs packages that aren't installed ({error}): install Lowtide with its extra `etcd`"
        raise MetadataStoreError(message) from error
    return await EtcdStore.open(etcd.endpoints, access=etcd.access, prefix=etcd.prefix)


def _lease_keeper(etcd: EtcdAddress, clock: Clock, times: KeeperTimes) -> LeaseKeeper:
    from lowtide.metadata.etcd_renewer import EtcdRenewer  # noqa: PLC0415 - as above; the store was opened before.

    return ThreadLeaseKeeper(clock, times, EtcdRenewer(etcd.endpoints, etcd.access))
