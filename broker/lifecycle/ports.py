"""The outside world of a broker: clock, files, threads and metadata store, real or simulated."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

import msgspec

from lowtide.broker.lifecycle.embedded_store import open_embedded
from lowtide.metadata.etcd_address import DEFAULT_PREFIX, EtcdAddress
from lowtide.metadata.lease_keeper import KeeperTimes, LeaseKeeper, ThreadLeaseKeeper
from lowtide.metadata.store import MetadataStoreError, OwnedStore
from lowtide.protocol import native
from lowtide.replication.leader_balance import BrokerLoad
from lowtide.runtime.clock import Clock, SystemClock
from lowtide.runtime.committer import MeasuredCommitter, ThreadCommitter
from lowtide.runtime.filesystem import FileSystem, OsFileSystem
from lowtide.runtime.heap import Heap, system_heap
from lowtide.runtime.heavy_work import HeavyWorker
from lowtide.runtime.process import open_file_limit
from lowtide.runtime.processes import ProcessHeavyWorker
from lowtide.runtime.random import Random, system_random
from lowtide.runtime.thread_usage import ReadUsage, ThreadUsageReader, no_usage
from lowtide.runtime.worker import ThreadWorker, Worker


class Neighbours(Protocol):
    """The other brokers of this machine, if one supervisor runs several."""

    @property
    def machine(self) -> Sequence[int]: ...

    def away(self) -> Sequence[int]: ...

    async def pages(self, form: str) -> Sequence[tuple[int, bytes]]:
        """Returns the metrics pages of the other brokers that answer in time, by id.

        `form`: the value of a `Format`.
        """
        ...

    def report(self, load: BrokerLoad) -> None: ...


class Ports(msgspec.Struct, frozen=True, kw_only=True):
    """The outside world of one broker."""

    loop: asyncio.AbstractEventLoop
    clock: Clock
    filesystem: FileSystem
    random: Random
    worker: Worker
    make_committer: Callable[[str], MeasuredCommitter]
    open_store: Callable[[str], Awaitable[OwnedStore]]
    """Opens the metadata store: embedded in this log directory, or elsewhere."""
    make_heavy_worker: Callable[[int], HeavyWorker] | None = None
    """Takes the maximum number of processes. None disables compaction."""
    make_lease_keeper: Callable[[KeeperTimes], LeaseKeeper] | None = None
    """Creates the thread that renews the broker's lease while the loop is blocked. None if the store is in the same
    loop."""
    shared_metadata: str = ""
    """The name of a shared metadata store in messages; empty for an embedded one."""
    metadata_prefix: bytes = DEFAULT_PREFIX
    """The prefix of the keys of the cluster's metadata."""
    open_files: int = 1 << 20
    heap: Heap | None = None
    """The heap of the process; None if memory cannot be returned to the system."""
    neighbours: Neighbours | None = None
    """None if the broker is alone on its machine."""
    read_usage: ReadUsage = no_usage
    """Returns the CPU usage of the loop's thread; called by that thread."""


def real_ports(loop: asyncio.AbstractEventLoop, etcd: EtcdAddress | None = None) -> Ports:
    """Returns threads, files and the system's clock; metadata in the first log directory, or in etcd."""
    filesystem, clock = OsFileSystem(), SystemClock()

    async def open_store(directory: str) -> OwnedStore:
        if etcd is not None:
            return await _open_etcd(etcd)
        return await open_embedded(directory, filesystem, clock)

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
        from lowtide.metadata.etcd import EtcdStore  # noqa: PLC0415 - slow, and only brokers with etcd have its packages.
    except ImportError as error:
        raise MetadataStoreError(
            f"the packages for etcd are not installed ({error}): install Lowtide with its extra `etcd`"
        ) from error
    return await EtcdStore.open(etcd.endpoints, access=etcd.access, prefix=etcd.prefix)


def _lease_keeper(etcd: EtcdAddress, clock: Clock, times: KeeperTimes) -> LeaseKeeper:
    from lowtide.metadata.etcd_renewer import EtcdRenewer  # noqa: PLC0415 - as above

    return ThreadLeaseKeeper(clock, times, EtcdRenewer(etcd.endpoints, etcd.access))
