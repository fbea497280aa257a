"""Clusters that share an etcd.

One whose prefix lies inside another's, or around it, doesn't begin, also if both begin at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence

import pytest

from lowtide.metadata import keys
from lowtide.metadata.broker_facts import RecoveryError
from lowtide.metadata.errors import InconsistentClusterError, NestedPrefixError
from lowtide.metadata.metadata_copy import MetadataCopy
from lowtide.metadata.prefixes import prefix_inside, prefixes_around
from lowtide.metadata.records import Listener
from lowtide.metadata.recovery import RecoveryPlan
from lowtide.metadata.recovery_writer import bring_forward
from lowtide.metadata.registration import BrokerRegistration
from lowtide.metadata.session import MetadataSession, SessionPorts, SessionSettings
from lowtide.metadata.store import AccessDeniedError, Compare, Operation, Put, TransactionResult
from lowtide.runtime.simulated_loop import SimulatedLoop, run_simulation
from lowtide.runtime.simulated_ports import SimulatedClock
from lowtide.runtime.tasks import TaskRegistry
from lowtide.simulation.memory_store import MemoryClient, MemoryDisk, MemoryStore
from tests.each import each
from tests.scenarios import played_by

from .test_recovery import HistoryRecord, rows
from .test_unreadable_keys import GARBAGE, KINDS

REGISTRATION = BrokerRegistration((Listener("PLAINTEXT", "host", 9092),))
OUTER, INNER = b"/lowtide/", b"/lowtide/west/1/"


class OnlyOwnKeys(MemoryClient):
    """A user of etcd that may see the keys of one cluster only."""

    prefix = b""

    async def transact(
        self, compares: Sequence[Compare], operations: Sequence[Operation], otherwise: Sequence[Operation] = ()
    ) -> TransactionResult:
        if not all(each.key.startswith(self.prefix) for each in (*compares, *operations, *otherwise)):
            raise AccessDeniedError("permission denied")
        return await super().transact(compares, operations, otherwise)


class World:
    def __init__(self, loop: SimulatedLoop) -> None:
        self.loop, self.clock, self.disk = loop, SimulatedClock(loop), MemoryDisk()
        self.store = MemoryStore(self.disk, clock=self.clock, random=loop.random, loop=loop)
        self.failures: list[BaseException] = []

    def session(self, prefix: bytes, broker_id: int = 1, *, client: MemoryClient | None = None) -> MetadataSession:
        ports = SessionPorts(
            store=client or MemoryClient(self.store, latency_ms=0.2),
            clock=self.clock,
            tasks=TaskRegistry(lambda _name, error: self.failures.append(error)),
            random=self.loop.random,
        )
        return MetadataSession(
            ports, broker_id=broker_id, settings=SessionSettings(prefix=prefix, registration_timeout_ms=20_000)
        )

    async def tried(self, session: MetadataSession, *, after_s: float = 0.0) -> str:
        """Start a broker. Returns why it is refused, nothing for one that runs."""
        await asyncio.sleep(after_s)
        try:
            await session.start(REGISTRATION)
        except InconsistentClusterError as error:
            await session.close()
            return str(error)
        return ""


def play(scenario: Callable[[World], Coroutine[None, None, None]], seed: int = 1) -> None:
    run_simulation(lambda loop: scenario(World(loop)), seed, time_limit_s=600)


@pytest.mark.parametrize("inner", [INNER, b"/lowtide/topics/", b"/lowtide/acls/", b"/lowtide/brokers/"])
@pytest.mark.parametrize("outer_first", [True, False])
@played_by(play)
async def test_the_second_cluster_does_not_begin_and_the_first_goes_on(
    world: World, /, inner: bytes, *, outer_first: bool
) -> None:
    prefixes = (OUTER, inner) if outer_first else (inner, OUTER)
    first, second = world.session(prefixes[0]), world.session(prefixes[1])
    assert await world.tried(first) == ""
    refused = await world.tried(second)
    assert OUTER.decode() in refused
    assert inner.decode() in refused
    assert ("lies inside" if outer_first else "inside, at") in refused
    assert await world.store.get(prefixes[1] + keys.CLUSTER_ID) is None, "nothing is left of it"
    again = world.session(prefixes[0], 2)
    assert await world.tried(again) == ""
    assert again.nested is None
    await asyncio.sleep(30)
    assert not world.failures
    assert not first.is_fenced


@each("seed", range(100))
def test_of_two_that_begin_at_once_one_goes_on(seed: int) -> None:
    """Whichever brokers of them come first."""

    async def scenario(world: World) -> None:
        random = world.loop.random
        made = [(OUTER, world.session(OUTER, 1)), (OUTER, world.session(OUTER, 2)), (INNER, world.session(INNER, 1))]
        found = await asyncio.gather(*(world.tried(session, after_s=random.random() / 500) for _, session in made))
        running = {prefix for (prefix, _), refused in zip(made, found, strict=True) if not refused}
        assert len(running) == 1, found
        for (prefix, _), refused in zip(made, found, strict=True):
            assert not refused or (OUTER.decode() in refused and INNER.decode() in refused)
            assert refused or await world.store.get(prefix + keys.CLUSTER_ID) is not None

    play(scenario, seed)


@played_by(play)
async def test_a_user_that_may_not_look_around_begins(world: World, /) -> None:
    """Keys that are not understood harm no broker of the other cluster."""
    outer, inner = world.session(OUTER), OnlyOwnKeys(world.store, latency_ms=0.2)
    inner.prefix = INNER
    assert await world.tried(outer) == ""
    assert await world.tried(world.session(INNER, client=inner)) == ""
    later = world.session(OUTER, 2)
    assert await world.tried(later) == ""
    assert later.nested is not None
    assert INNER.decode() in later.nested
    await asyncio.sleep(30)
    assert not world.failures


@pytest.mark.parametrize("name", [name for name in KINDS if name not in {"suspension", "brokers/<id>", "controller"}])
@played_by(play)
async def test_brokers_run_on_whichever_key_breaks(world: World, /, name: str) -> None:
    """And they are registered again after the store was away for longer than their session."""
    sessions = [world.session(OUTER, broker_id) for broker_id in (1, 2)]
    for session in sessions:
        assert await world.tried(session) == ""
    for value in GARBAGE[: 1 if name == "cluster_id" else None]:
        await world.store.transact([], [Put(OUTER + KINDS[name].key, value)])
        await asyncio.sleep(1)
        assert not world.failures
        assert not any(session.is_fenced for session in sessions)
    killed = sessions[1]
    await killed.close()
    await asyncio.sleep(10)
    assert not world.failures
    assert 2 not in sessions[0].image.brokers
    assert sessions[0].is_controller


@played_by(play)
async def test_a_recovery_deletes_nothing_of_a_cluster_inside(world: World, /) -> None:
    inner = Put(OUTER + b"x/" + keys.CLUSTER_ID, b"another")
    await world.store.transact([], [inner])
    copy = MetadataCopy(rows(40), 40, history_id="H", cluster_id="C")
    plan = RecoveryPlan({key: row[1] for key, row in copy.rows.items()}, HistoryRecord("N"), 1, 40, (), (), (), ())
    with pytest.raises(RecoveryError, match=r"/lowtide/ in etcd has another cluster inside, at /lowtide/x/"):
        await bring_forward(world.store, OUTER, plan)
    assert await world.store.get(inner.key) is not None


def test_where_a_cluster_is() -> None:
    assert prefixes_around(b"/lowtide/") == []
    assert prefix_inside(OUTER, [(b"topics/cluster_id", b'{"topic_id":"x"}'), (b"cluster_id", b"C")]) is None
    assert prefix_inside(OUTER, [(b"topics/cluster_id", b"another")]) == b"/lowtide/topics/"
    assert issubclass(NestedPrefixError, InconsistentClusterError)
