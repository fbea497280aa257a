"""No broker acts on a store that was restored from a backup.

Sessions on a simulated store, restored while they are down, cut off or up.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from lowtide.metadata import keys
from lowtide.metadata.errors import FencedError, InconsistentClusterError, StoreWentBackError
from lowtide.metadata.metadata_copy import MetadataCopy
from lowtide.metadata.records import HistoryRecord, Listener, decode, encode
from lowtide.metadata.registration import BrokerRegistration
from lowtide.metadata.session import MetadataSession, SessionPorts, SessionSettings
from lowtide.metadata.store import Delete, Put
from lowtide.metadata.store_guard import SURPLUS_MARGIN, least_surplus
from lowtide.runtime.random import Random
from lowtide.runtime.simulated_loop import SimulatedLoop, run_simulation
from lowtide.runtime.simulated_ports import SimulatedClock
from lowtide.runtime.tasks import TaskRegistry
from lowtide.simulation.shared_store import SharedStore, StoreLink, StoreSnapshot
from tests.scenarios import played_by

PREFIX = b"/lowtide/"
REGISTRATION = BrokerRegistration((Listener("PLAINTEXT", "127.0.0.1", 9092),))


class World:
    """A store and the sessions of brokers."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self.loop = loop
        self.shared = SharedStore(loop, Random(7))
        self.failures: list[BaseException] = []
        self.tasks = TaskRegistry(lambda _name, error: self.failures.append(error))

    def session(self, broker_id: int = 1) -> MetadataSession:
        link = StoreLink(self.shared, Random(broker_id), Counter())
        settings = SessionSettings(
            time_to_live_ms=1000, keep_alive_ms=200, registration_timeout_ms=5000, image_age_ms=1200
        )
        clock = SimulatedClock(self.loop)
        return MetadataSession(
            SessionPorts(store=link, clock=clock, tasks=self.tasks, random=Random(broker_id)),
            broker_id=broker_id,
            settings=settings,
        )

    async def started(self, broker_id: int = 1, remembered: dict[str, MetadataCopy] | None = None) -> MetadataSession:
        session = self.session(broker_id)
        await session.open(None, remembered)
        await session.start(REGISTRATION)
        return session

    async def put(self, key: bytes, value: bytes) -> None:
        await self.shared.store.transact([], [Put(PREFIX + key, value)])

    def value(self, key: bytes) -> bytes | None:
        pair = self.shared.disk.keys.get(PREFIX + key)
        return None if pair is None else pair.value

    def put_back(self, snapshot: StoreSnapshot, *, copied: bool = False) -> None:
        self.shared.stop()
        self.shared.restore(snapshot, copied=copied)
        self.shared.start()


def play(scenario: Callable[[World], Coroutine[Any, Any, None]]) -> None:
    async def run(loop: SimulatedLoop) -> None:
        world = World(loop)
        await scenario(world)
        await world.tasks.cancel_all()

    run_simulation(run, 1, time_limit_s=600)


def copy_of(session: MetadataSession) -> MetadataCopy:
    copy = session._follower.copy
    return MetadataCopy(copy.rows.values(), copy.revision, history_id=copy.history_id, cluster_id=copy.cluster_id)


@pytest.mark.parametrize("copied", [False, True])
@played_by(play)
async def test_directories_that_have_seen_more_refuse_the_store_and_suspend_it_for_all(
    world: World, /, copied: bool
) -> None:
    session = await world.started()
    snapshot = world.shared.snapshot()
    await world.put(keys.NEXT_PRODUCER_ID, b"1000")
    await session.wait_for(world.shared.disk.revision)
    remembered = {"/disk": copy_of(session)}
    await session.close()
    world.put_back(snapshot, copied=copied)
    with pytest.raises(StoreWentBackError, match="recover"):
        await world.session().open(None, remembered)
    for other in (1, 2, 3):
        with pytest.raises(InconsistentClusterError, match=r"suspended, broker 1 found .* recover"):
            await world.session(other).open(None, {})


@played_by(play)
async def test_a_store_that_was_pushed_past_the_revision_of_a_directory_is_refused_anyway(world: World, /) -> None:
    """Another broker started on it first; its files were restored too, so that broker could not detect it."""
    session = await world.started()
    snapshot = world.shared.snapshot()
    await world.put(keys.topic_id(b"T" * 16), b"t")
    await session.wait_for(world.shared.disk.revision)
    remembered = {"/disk": copy_of(session)}
    await session.close()
    world.put_back(snapshot, copied=True)
    other = await world.started(2)
    for number in range(30):
        await world.put(b"config/group/g", b'{"n":"%d"}' % number)
    assert world.shared.disk.revision > remembered["/disk"].revision
    with pytest.raises(StoreWentBackError):
        await world.session().open(None, remembered)
    await asyncio.sleep(1)
    assert other.refused, "the suspension stops it"
    assert other.is_fenced


@played_by(play)
async def test_a_broker_without_a_copy_detects_that_the_store_was_restored_from_a_snapshot(world: World, /) -> None:
    session = await world.started()
    snapshot = world.shared.snapshot()
    await session.close()
    world.put_back(snapshot)
    with pytest.raises(StoreWentBackError, match="restored from a snapshot"):
        await world.session(3).open(None, {})
    world.shared.raft_surplus = 10_000  # The raft log grows again; the suspension stays.
    with pytest.raises(InconsistentClusterError, match="suspended"):
        await world.session(3).open(None, {})


@played_by(play)
async def test_a_store_that_is_unchanged_is_not_refused(world: World, /) -> None:
    """A store that is ahead of a directory is not refused either."""
    session = await world.started()
    remembered = {"/disk": copy_of(session)}
    await session.close()
    await world.put(keys.NEXT_PRODUCER_ID, b"1000")
    again = await world.started(remembered=remembered)
    assert not again.is_fenced
    await again.close()


@pytest.mark.parametrize("copied", [False, True])
@played_by(play)
async def test_a_running_broker_stops_acting_once_the_store_is_restored(world: World, /, copied: bool) -> None:
    session = await world.started()
    idle = await world.started(2)
    snapshot = world.shared.snapshot()
    await world.put(keys.NEXT_PRODUCER_ID, b"1000")
    await session.wait_for(world.shared.disk.revision)
    await idle.wait_for(world.shared.disk.revision)
    world.put_back(snapshot, copied=copied)
    await asyncio.sleep(1.0)
    for each in (session, idle):
        assert each.refused
        assert each.is_fenced
        with pytest.raises(FencedError, match="recover"):
            await each.allocate_producer_ids()
    assert all(isinstance(failure, InconsistentClusterError) for failure in world.failures)
    assert world.failures
    for each in (session, idle):
        await each.close()
    assert world.value(keys.SUSPENSION) is not None


@played_by(play)
async def test_another_history_is_refused_except_by_directories_of_the_recovery(world: World, /) -> None:
    session = await world.started()
    copy = copy_of(session)
    await session.close()
    old = decode(keys.HISTORY, world.value(keys.HISTORY) or b"", HistoryRecord)
    await world.put(keys.HISTORY, encode(HistoryRecord("other", 0, old.history_id, copy.revision)))
    again = await world.started(remembered={"/disk": copy})
    await again.close()
    copy.revision += 1
    with pytest.raises(InconsistentClusterError, match="is of history other, the log directory /disk"):
        await world.session().open(None, {"/disk": copy})
    assert world.value(keys.SUSPENSION) is None, "it may be this directory that is wrong"
    await world.shared.store.transact([], [Delete(PREFIX + keys.HISTORY)])
    with pytest.raises(InconsistentClusterError, match="has no history"):
        await world.session().open(None, {"/disk": copy})


@played_by(play)
async def test_a_recovery_stops_running_brokers(world: World, /) -> None:
    session = await world.started()
    await world.put(keys.HISTORY, encode(HistoryRecord("other")))
    await asyncio.sleep(0.5)
    assert session.is_fenced
    assert "start it again" in session.refused
    await session.close()


def test_a_store_that_was_restored_before_it_was_used_is_no_reason() -> None:
    """The measured value may be slightly too large; it never falls by more than that."""
    assert least_surplus(None) == least_surplus(3) == least_surplus(1_000_000) == 0
    assert least_surplus(-50_000) == -50_000 - SURPLUS_MARGIN


@pytest.mark.parametrize("cluster_id", [None, "cluster"])
@played_by(play)
async def test_an_empty_store_is_refused_by_a_directory_that_has_another_history(
    world: World, /, cluster_id: str | None
) -> None:
    """Nothing is written to it: neither the cluster's id, which an empty store lacks, nor a history."""
    session = world.session()
    await session.open(cluster_id)
    await session.start(REGISTRATION)
    await session.wait_for(world.shared.disk.revision)
    remembered = {"/disk": copy_of(session)}
    await session.close()
    everything = list(world.shared.disk.keys)
    await world.shared.store.transact([], [Delete(key) for key in everything])
    with pytest.raises(InconsistentClusterError, match=r"has no history, the log directory /disk .* recover"):
        await world.session().open(cluster_id, remembered)
    assert not world.shared.disk.keys
