"""The store on an etcd that is restarted, killed, stopped and compacted, with dead endpoints: real processes."""

from __future__ import annotations

import asyncio
import random
import shutil
import socket
import time
from collections.abc import Iterator
from contextlib import aclosing, suppress
from pathlib import Path

import pytest

from lowtide.metadata.errors import InconsistentClusterError
from lowtide.metadata.image import MetadataImage
from lowtide.metadata.records import Listener
from lowtide.metadata.registration import BrokerRegistration
from lowtide.metadata.session import MetadataSession, SessionPorts, SessionSettings
from lowtide.metadata.store import (
    AmbiguousError,
    Batch,
    CompactedError,
    Compare,
    KeyValue,
    LeaseGoneError,
    MetadataStore,
    Put,
    UnavailableError,
)
from lowtide.runtime.clock import SystemClock
from lowtide.runtime.tasks import TaskRegistry
from tests.etcd import HOST, EtcdCluster, EtcdProcess, missing

if missing() is None:
    from lowtide.metadata.etcd import EtcdStore
    from lowtide.metadata.etcd_connection import CONNECT_TIMEOUT_S, REQUEST_TIMEOUT_S

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))

LIMIT_S = 120.0
SLOW_S = 60.0
"""The additional time for a busy machine."""

LONG_LEASE_MS, LASTING_LEASE_MS = 6_000, 30_000
"""The times of a lease that ends during the test, once it is no longer renewed, and of one that must not end."""

KILLS = 4
WRITERS = 3


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[EtcdProcess]:
    with EtcdProcess(tmp_path / "etcd") as process:
        yield process


async def put(store: MetadataStore, key: bytes, value: bytes = b"") -> int:
    return (await store.transact([], [Put(key, value)])).revision


async def until_available(store: MetadataStore) -> KeyValue | None:
    async with asyncio.timeout(LIMIT_S):
        while True:
            with suppress(UnavailableError):
                return await store.get(b"any")
            await asyncio.sleep(0.02)


class Watcher:
    """Follows a prefix as a session does: repeatedly from the revision after the last."""

    def __init__(self, store: MetadataStore, prefix: bytes, start: int) -> None:
        self.batches: list[Batch] = []
        self.interruptions = 0
        self._store, self._prefix, self._next = store, prefix, start
        self.task = asyncio.ensure_future(self._follow())

    async def _follow(self) -> None:
        while True:
            try:
                async with aclosing(self._store.watch(self._prefix, self._next)) as batches:
                    async for batch in batches:
                        self.batches.append(batch)
                        self._next = batch.revision + 1
            except UnavailableError:
                self.interruptions += 1
                await asyncio.sleep(0.02)

    @property
    def revisions(self) -> list[int]:
        return [batch.revision for batch in self.batches]

    async def until(self, revision: int) -> None:
        async with asyncio.timeout(LIMIT_S):
            while self._next <= revision and not self.task.done():
                await asyncio.sleep(0.01)
        if self.task.done():
            self.task.result()

    async def stop(self) -> None:
        self.task.cancel()
        with suppress(asyncio.CancelledError):
            await self.task


async def test_a_restart_is_survived_by_watch_and_lease(etcd: EtcdProcess) -> None:
    """After a restart etcd continues with the same lease and a watch without gaps or repetitions."""
    store = await EtcdStore.open([etcd.endpoint])
    lease = await store.lease_grant(LASTING_LEASE_MS)
    first = (await store.transact([], [Put(b"/w/0", b"", lease)])).revision
    watcher = Watcher(store, b"/w/", first)
    await watcher.until(first)
    await asyncio.to_thread(etcd.terminate)
    with pytest.raises(
        (UnavailableError, AmbiguousError)
    ):  # Ambiguous as long as the end of the connection hasn't been noticed.
        await put(store, b"/w/1")
    await asyncio.to_thread(etcd.start)
    await until_available(store)
    await store.lease_keep_alive(lease)
    last = [await put(store, b"/w/2"), await put(store, b"/w/3")][-1]
    await watcher.until(last)
    assert watcher.revisions == [first, first + 1, first + 2]
    await watcher.stop()
    await store.close()


async def increment(store: MetadataStore, key: bytes, until: asyncio.Event) -> tuple[int, int]:
    """Counts in one key until stopped. Returns the number of acknowledged and of ambiguous writes."""
    acknowledged = unknown = 0
    while not until.is_set():
        try:
            pair = await store.get(key)
            value, revision = (0, 0) if pair is None else (int(pair.value), pair.modify_revision)
            result = await store.transact([Compare(key, "modify", "==", revision)], [Put(key, b"%d" % (value + 1))])
            acknowledged += result.succeeded
        except AmbiguousError:
            unknown += 1
        except UnavailableError:
            await asyncio.sleep(0.02)
    return acknowledged, unknown


async def test_nothing_acknowledged_is_lost_when_etcd_is_killed(etcd: EtcdProcess) -> None:
    """SIGKILL under writers that count: acknowledged writes exist once, and the watch delivered all."""
    store = await EtcdStore.open([etcd.endpoint])
    start = (await store.range(b""))[1] + 1
    watcher, stop = Watcher(store, b"/n/", start), asyncio.Event()
    writers = [asyncio.ensure_future(increment(store, b"/n/%d" % number, stop)) for number in range(WRITERS)]
    moments = random.Random(7)
    for _ in range(KILLS):
        await asyncio.sleep(moments.uniform(0.05, 0.3))
        await asyncio.to_thread(etcd.kill)
        await asyncio.to_thread(etcd.start)
    await until_available(store)
    stop.set()
    counts = await asyncio.gather(*writers)
    pairs, revision = await store.range(b"/n/")
    for pair, (acknowledged, unknown) in zip(pairs, counts, strict=True):
        assert acknowledged <= int(pair.value) <= acknowledged + unknown
    assert sum(acknowledged for acknowledged, _ in counts) > KILLS * WRITERS
    await watcher.until(revision)
    assert watcher.revisions == [*range(start, revision + 1)]
    for number in range(WRITERS):
        values = [event.value for batch in watcher.batches for event in batch.events if event.key == b"/n/%d" % number]
        assert values == [b"%d" % (count + 1) for count in range(len(values))], "each count was written once"
    await watcher.stop()
    await store.close()


@pytest.mark.slow
async def test_an_etcd_that_is_silent_makes_no_call_wait_for_long(etcd: EtcdProcess) -> None:
    """SIGSTOP: a read is unavailable and a write ambiguous, in bounded time; the write may take effect later."""
    store = await EtcdStore.open([etcd.endpoint])
    lease = await store.lease_grant(60_000)
    first = await put(store, b"/w/0")
    watcher = Watcher(store, b"/w/", first)
    await watcher.until(first)
    etcd.freeze()
    begun = time.monotonic()
    with pytest.raises(AmbiguousError):
        await store.transact([Compare(b"/w/k", "create", "==", 0)], [Put(b"/w/k", b"1")])
    with pytest.raises(UnavailableError):
        await store.get(b"/w/k")
    with pytest.raises(UnavailableError):
        await store.lease_keep_alive(lease)
    with pytest.raises(UnavailableError, match="not reached"):
        await store.transact([], [Put(b"/w/l", b"1")])
    cancelled = asyncio.ensure_future(store.get(b"/w/k"))
    await asyncio.sleep(0.05)
    cancelled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    assert time.monotonic() - begun < 4 * (REQUEST_TIMEOUT_S + 2 * CONNECT_TIMEOUT_S) + SLOW_S
    etcd.thaw()
    await until_available(store)
    pair = await store.get(b"/w/k")
    assert pair is None or pair.value == b"1"
    assert await store.get(b"/w/l") is None, "a write that was not sent is not applied later either"
    await store.lease_keep_alive(lease)
    last = await put(store, b"/w/m")
    await watcher.until(last)
    assert watcher.revisions == [*range(first, last + 1)]
    await watcher.stop()
    await store.close()


async def test_compaction_does_not_disturb_a_watch_that_keeps_up(etcd: EtcdProcess) -> None:
    """A watch that restarts below the compacted revision gets an error, though nothing under its prefix changed."""
    store = await EtcdStore.open([etcd.endpoint])
    first = await put(store, b"/w/0")
    watcher = Watcher(store, b"/w/", first)
    await watcher.until(first)
    for _ in range(20):
        last = await put(store, b"/other")
    await asyncio.to_thread(etcd.compact, last)
    last = await put(store, b"/w/1")
    await watcher.until(last)
    for _ in range(20):
        other = await put(store, b"/other")
    await asyncio.to_thread(etcd.compact, other)
    await asyncio.to_thread(etcd.terminate)
    await asyncio.to_thread(etcd.start)
    with pytest.raises(CompactedError):
        await watcher.until(other)
    assert watcher.revisions == [first, last]
    await store.close()


async def test_a_range_is_read_again_when_its_revision_is_compacted(etcd: EtcdProcess) -> None:
    """All pages are of one revision, otherwise the reader would get a state that never existed."""
    store = await EtcdStore.open([etcd.endpoint])
    for part in range(4):
        await store.transact([], [Put(b"/p/%d/%03d" % (part, number), b"") for number in range(100)])
    read, calls = store._read, 0

    async def and_compact(*arguments: object) -> object:
        nonlocal calls
        calls += 1
        page = await read(*arguments)
        if calls == 1:
            await asyncio.to_thread(etcd.compact, await put(store, b"/p/new"))
        return page

    store._read = and_compact
    pairs, revision = await store.range(b"/p/")
    assert [len(pairs), revision] == [401, (await put(store, b"/after")) - 1]
    assert calls == 2 + 3, "a page, one that was refused, and three of the new revision"
    await store.close()


async def test_dead_endpoints_are_skipped(etcd: EtcdProcess) -> None:
    """Endpoints that refuse or stay silent precede the working one: writes and watches work."""
    with socket.socket() as silent, socket.socket() as refusing:
        silent.bind((HOST, 0))
        silent.listen()
        refusing.bind((HOST, 0))
        dead = [f"{HOST}:{each.getsockname()[1]}" for each in (refusing, silent)]
        for method in ("get", "transact", "lease", "watch"):
            store = EtcdStore([*dead, etcd.endpoint])
            begun = time.monotonic()
            if method == "get":
                assert await store.get(b"absent") is None
            elif method == "transact":
                first = await put(store, b"/w/0")
            elif method == "lease":
                await store.lease_keep_alive(await store.lease_grant(60_000))
            else:
                async with aclosing(store.watch(b"/w/", first)) as batches:
                    assert (await anext(batches)).revision == first
            assert time.monotonic() - begun < 2 * CONNECT_TIMEOUT_S + SLOW_S
            await store.close()


async def test_no_endpoint_answers() -> None:
    """A start fails with a message; it does not hang."""
    with socket.socket() as refusing:
        refusing.bind((HOST, 0))
        endpoint = f"{HOST}:{refusing.getsockname()[1]}"
        with pytest.raises(UnavailableError, match=f"no etcd answers at {endpoint}"):
            await EtcdStore.open([endpoint], timeout_s=0.3)


async def test_endpoints_of_two_etcds_are_detected(tmp_path: Path, etcd: EtcdProcess) -> None:
    """A broker that a dead endpoint moves to another etcd's metadata would consider itself new."""
    with EtcdProcess(tmp_path / "other") as other:
        store = await EtcdStore.open([etcd.endpoint, other.endpoint])
        await asyncio.to_thread(etcd.kill)
        with pytest.raises(InconsistentClusterError):
            while True:
                with suppress(UnavailableError):
                    await store.get(b"k")
        await store.close()


async def test_an_etcd_that_was_restored_is_detected(tmp_path: Path, etcd: EtcdProcess) -> None:
    """A backup lacks later decisions; its cluster id is the same."""
    store = await EtcdStore.open([etcd.endpoint])
    await put(store, b"/w/0")
    await asyncio.to_thread(etcd.terminate)
    shutil.copytree(etcd.directory, tmp_path / "backup")
    await asyncio.to_thread(etcd.start)
    await until_available(store)
    last = await put(store, b"/w/1")
    await asyncio.to_thread(etcd.terminate)
    shutil.rmtree(etcd.directory)
    shutil.copytree(tmp_path / "backup", etcd.directory)
    await asyncio.to_thread(etcd.start)
    with pytest.raises(InconsistentClusterError, match=f"went back from revision {last} to {last - 1}"):
        await until_available(store)
    await store.close()


async def test_the_leader_of_three_is_killed(tmp_path: Path) -> None:
    """With a majority left no acknowledged write is missing, the lease continues, and the watch has no gap."""
    with EtcdCluster(tmp_path) as cluster:
        store = await EtcdStore.open(cluster.endpoints)
        start = (await store.range(b""))[1] + 1
        lease = await store.lease_grant(LASTING_LEASE_MS)
        watcher, stop = Watcher(store, b"/n/", start), asyncio.Event()
        writers = [asyncio.ensure_future(increment(store, b"/n/%d" % number, stop)) for number in range(WRITERS)]
        await asyncio.sleep(0.1)
        (leader,) = [member for member in cluster.members if await asyncio.to_thread(member.leader)]
        await asyncio.to_thread(leader.kill)
        await until_available(store)
        await store.lease_keep_alive(lease)
        other = next(member for member in cluster.members if member is not leader)
        other.freeze()
        await asyncio.sleep(0.3)
        other.thaw()
        await until_available(store)
        await asyncio.sleep(0.1)
        stop.set()
        counts = await asyncio.gather(*writers)
        pairs, revision = await store.range(b"/n/")
        for pair, (acknowledged, unknown) in zip(pairs, counts, strict=True):
            assert acknowledged <= int(pair.value) <= acknowledged + unknown
        await watcher.until(revision)
        assert watcher.revisions == [*range(start, revision + 1)]
        await watcher.stop()
        await store.close()


@pytest.mark.slow
async def test_without_a_majority_nothing_is_answered(tmp_path: Path) -> None:
    """Not even a read, which one member could answer from old state; a watch does not stay silent.

    With a second member all continues.
    """
    with EtcdCluster(tmp_path) as cluster:
        last_one, *others = cluster.members
        store = await EtcdStore.open([last_one.endpoint])
        first = await put(store, b"/w/0")
        watcher = Watcher(store, b"/w/", first)
        await watcher.until(first)
        for member in others:
            await asyncio.to_thread(member.kill)
        with pytest.raises(UnavailableError):
            await store.get(b"/w/0")
        with pytest.raises((UnavailableError, AmbiguousError)):
            await put(store, b"/w/lost")
        await until(lambda: watcher.interruptions > 0)
        others[0].launch(*cluster.everyone)
        await until_available(store)
        last = await put(store, b"/w/1")
        await watcher.until(last)
        assert watcher.revisions == [*range(first, last + 1)]
        await watcher.stop()
        await store.close()


def session_on(store: MetadataStore, broker_id: int, time_to_live_ms: int = 1000) -> MetadataSession:
    """A session that must not end on a busy machine has a longer lease."""
    settings = SessionSettings(time_to_live_ms=time_to_live_ms, keep_alive_ms=150)
    registry = TaskRegistry(lambda _name, _error: None)
    return MetadataSession(
        SessionPorts(store=store, clock=SystemClock(), tasks=registry, random=random.Random(broker_id)),
        broker_id=broker_id,
        settings=settings,
    )


REGISTRATION = BrokerRegistration((Listener("PLAINTEXT", HOST, 9092),))


async def until(condition: object) -> None:
    async with asyncio.timeout(LIMIT_S):
        while not condition():  # type: ignore[operator]
            await asyncio.sleep(0.01)


async def test_a_session_registers_again_when_etcd_was_down_for_longer_than_its_lease(etcd: EtcdProcess) -> None:
    """It fences itself while it cannot renew; etcd ends the lease, and the next registration has a higher epoch."""
    store = await EtcdStore.open([etcd.endpoint])
    session = session_on(store, 1)
    await session.start(REGISTRATION)
    first = session.broker_epoch
    await until(lambda: session.is_controller)
    etcd.freeze()
    await until(lambda: session.is_fenced)
    await asyncio.sleep(1.0)
    etcd.thaw()
    await until(lambda: session.broker_epoch > first and not session.is_fenced and session.is_controller)
    image: MetadataImage = session.image
    assert image.brokers[1].epoch == session.broker_epoch
    await session.close()
    assert [pair.key for pair in (await store.range(b"/lowtide/brokers/"))[0]] == []
    await store.close()


async def test_a_session_keeps_its_epoch_when_etcd_is_killed_and_back_in_time(etcd: EtcdProcess) -> None:
    """Leases survive the server: no lease ended, so no registration is repeated."""
    store = await EtcdStore.open([etcd.endpoint])
    session = session_on(store, 1, 20_000)
    await session.start(REGISTRATION)
    first = session.broker_epoch
    await asyncio.to_thread(etcd.kill)
    await asyncio.to_thread(etcd.start)
    await until(lambda: not session.is_fenced)
    assert session.broker_epoch == first
    await session.close()
    await store.close()


async def test_another_broker_takes_over_when_a_lease_expires(etcd: EtcdProcess) -> None:
    """When the store ends the controller's lease, another broker becomes the controller."""
    stores = [await EtcdStore.open([etcd.endpoint]) for _ in range(3)]
    first, second, third = (session_on(store, number, LONG_LEASE_MS) for number, store in enumerate(stores, start=1))
    for session in (first, second, third):
        await session.start(REGISTRATION)
    assert [each.is_controller for each in (first, second, third)] == [True, False, False]
    assert [*third.image.brokers] == [1, 2, 3]
    await stores[0].close()  # As if it were cut off: nothing is revoked or renewed.
    await until(lambda: first.is_fenced)
    await until(lambda: 1 not in second.image.brokers and (second.is_controller or third.is_controller))
    with pytest.raises(LeaseGoneError):
        await stores[1].lease_keep_alive(first._lease.id)
    again_store = await EtcdStore.open([etcd.endpoint])
    again = session_on(again_store, 1, LONG_LEASE_MS)
    await again.start(REGISTRATION)
    assert sorted(again.image.brokers) == [1, 2, 3]
    assert not again.is_controller
    for session, store in ((first, stores[0]), (second, stores[1]), (third, stores[2]), (again, again_store)):
        await session.close()
        await store.close()
