"""Several brokers' sessions on one store: what each publishes, the age of an image, and invariants under faults."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing
from typing import Any

import pytest

from lowtide.metadata import keys
from lowtide.metadata.changes import ChangePlan, Step
from lowtide.metadata.errors import SessionError
from lowtide.metadata.image import MetadataImage
from lowtide.metadata.image_change import load_image
from lowtide.metadata.records import Listener
from lowtide.metadata.registration import BrokerRegistration
from lowtide.metadata.session import MetadataSession, SessionPorts, SessionSettings
from lowtide.metadata.store import Batch, MetadataStoreError, Put, Revision, UnavailableError
from lowtide.runtime.random import Random
from lowtide.runtime.simulated_loop import SimulatedLoop, run_simulation
from lowtide.runtime.simulated_ports import SimulatedClock
from lowtide.runtime.tasks import TaskRegistry
from lowtide.simulation.memory_store import MemoryClient, MemoryDisk, MemoryStore
from tests.scenarios import played_by

PREFIX = b"/lowtide/"
REGISTRATION = BrokerRegistration((Listener("PLAINTEXT", "host", 9092),))
TIME_TO_LIVE_MS, KEEP_ALIVE_MS, IMAGE_AGE_MS = 4000, 500, 6000
TOPIC = b"T" * 16


class Client(MemoryClient):
    """One broker's connection to the store, whose watch can lag or be silent while all other calls work."""

    watch_lag_s = 0.0
    silent = False
    watches = 0
    dead_watches = 0
    """The number of first watches that deliver nothing more."""

    async def watch(self, prefix: bytes, start_revision: Revision) -> AsyncGenerator[Batch, None]:
        self.watches += 1
        number = self.watches
        async with aclosing(super().watch(prefix, start_revision)) as batches:
            async for batch in batches:
                await asyncio.sleep(self.watch_lag_s)
                while self.silent or number <= self.dead_watches:
                    await asyncio.sleep(0.1)
                yield batch


class Broker:
    """A process with a session."""

    def __init__(self, world: World, broker_id: int) -> None:
        self.node = world.loop.start_node(f"broker-{broker_id}-{len(world.brokers)}")
        self.client = Client(world.store, latency_ms=0.3)
        self.failures: list[BaseException] = []
        self.revisions: list[int] = []
        self.session = MetadataSession(
            SessionPorts(
                store=self.client,
                clock=world.clock,
                tasks=TaskRegistry(lambda _name, error: self.failures.append(error)),
                random=Random(world.loop.random.getrandbits(32)),
            ),
            broker_id=broker_id,
            settings=SessionSettings(
                time_to_live_ms=TIME_TO_LIVE_MS,
                keep_alive_ms=KEEP_ALIVE_MS,
                registration_timeout_ms=60_000,
                image_age_ms=IMAGE_AGE_MS,
            ),
        )
        self.session.on_image(lambda old, new, _delta: self._on_image(old, new))

    def _on_image(self, old: MetadataImage, new: MetadataImage) -> None:
        assert new.revision > old.revision
        self.revisions.append(new.revision)

    async def start(self) -> None:
        await self.node.spawn(self.session.start(REGISTRATION))


class World:
    def __init__(self, loop: SimulatedLoop) -> None:
        self.loop = loop
        self.clock = SimulatedClock(loop)
        self.disk = MemoryDisk()
        self.store = MemoryStore(self.disk, clock=self.clock, random=loop.random, loop=loop)
        self.brokers: list[Broker] = []

    async def started(self, broker_id: int) -> Broker:
        self.brokers.append(Broker(self, broker_id))
        await self.brokers[-1].start()
        return self.brokers[-1]

    def truth(self) -> MetadataImage:
        return load_image(self.disk.keys.values(), self.disk.revision, prefix=PREFIX)

    async def until(self, condition: Callable[..., bool]) -> int:
        begun = self.clock.monotonic_ms()
        while not condition():
            await asyncio.sleep(0.005)
        return self.clock.monotonic_ms() - begun


def play(scenario: Callable[[World], Coroutine[Any, Any, None]], seed: int = 1) -> None:
    run_simulation(lambda loop: scenario(World(loop)), seed, time_limit_s=2000)


def put(key: bytes, value: bytes) -> ChangePlan:
    return ChangePlan((Step((Put(key, value),)),), needs_controller=False)


@played_by(play)
async def test_a_wish_to_stop_is_visible_to_all_and_ends_with_the_registration(world: World, /) -> None:
    first, second = await world.started(1), await world.started(2)
    first.session.reports.begin_controlled_shutdown()
    took = await world.until(lambda: second.session.image.brokers[1].in_controlled_shutdown)
    assert took < 50
    await first.node.spawn(first.session.close())
    await world.until(lambda: 1 not in second.session.image.brokers)
    again = await world.started(1)
    assert not again.session.image.brokers[1].in_controlled_shutdown
    assert again.failures == first.failures == []


@played_by(play)
async def test_a_wish_to_stop_survives_a_lost_lease(world: World, /) -> None:
    """A broker that registers again while it is stopping must receive no leadership."""
    first, second = await world.started(1), await world.started(2)
    first.session.reports.begin_controlled_shutdown()
    await world.until(lambda: second.session.image.brokers[1].in_controlled_shutdown)
    epoch = first.session.broker_epoch
    first.client.cut = True
    await world.until(lambda: 1 not in second.session.image.brokers)
    first.client.cut = False
    await world.until(lambda: first.session.broker_epoch > epoch)
    await world.until(
        lambda: 1 in second.session.image.brokers and second.session.image.brokers[1].in_controlled_shutdown
    )


@pytest.mark.parametrize("how", ["", "unavailable", "lost", "unanswered"])
@played_by(play)
async def test_a_cordoned_broker_is_shown_under_the_same_epoch(world: World, /, how: str) -> None:
    """KIP-1066. It survives a lost lease, and ends when a directory is free again."""
    first, second = await world.started(1), await world.started(2)
    epoch = first.session.broker_epoch
    if how:
        first.client.fail_next(how)
    first.session.reports.set_cordoned(cordoned=True)
    await world.until(lambda: second.session.image.brokers[1].is_cordoned)
    assert second.session.image.broker_epoch(1) == first.session.broker_epoch == epoch
    first.client.cut = True
    await world.until(lambda: 1 not in second.session.image.brokers)
    first.client.cut = False
    await world.until(lambda: first.session.broker_epoch > epoch)
    await world.until(lambda: 1 in second.session.image.brokers and second.session.image.brokers[1].is_cordoned)
    first.session.reports.set_cordoned(cordoned=False)
    await world.until(lambda: not second.session.image.brokers[1].is_cordoned)
    assert first.failures == second.failures == []


@pytest.mark.parametrize("how", ["", "unavailable", "lost", "unanswered"])
@played_by(play)
async def test_offline_replicas_are_published_whatever_message_is_lost(world: World, /, how: str) -> None:
    first, second = await world.started(1), await world.started(2)
    if how:
        first.client.fail_next(how)
    first.session.reports.set_offline({TOPIC: frozenset({1})})
    await world.until(lambda: not second.session.image.replica_is_online(1, TOPIC, 1))
    first.session.reports.set_offline({TOPIC: frozenset({1, 2})})
    await world.until(lambda: not second.session.image.replica_is_online(1, TOPIC, 2))
    assert second.session.image.replica_is_online(1, TOPIC, 0)
    epoch = first.session.broker_epoch
    first.client.cut = True
    await world.until(lambda: 1 not in second.session.image.brokers)
    first.client.cut = False
    await world.until(lambda: first.session.broker_epoch > epoch)
    await world.until(lambda: second.session.image.broker_epoch(1) == first.session.broker_epoch)
    assert not second.session.image.replica_is_online(1, TOPIC, 1), "in the same revision as the registration"


@played_by(play)
async def test_what_is_offline_at_a_start_is_published_with_the_registration(world: World, /) -> None:
    second = await world.started(2)
    shown: list[bool] = []
    second.session.on_image(
        lambda _old, new, _delta: shown.append(1 in new.brokers and new.replica_is_online(1, TOPIC, 0))
    )
    world.brokers.append(Broker(world, 1))
    first = world.brokers[-1]
    await first.node.spawn(first.session.start(REGISTRATION, None, {TOPIC: frozenset({0})}))
    await world.until(lambda: 1 in second.session.image.brokers)
    assert not any(shown)


@played_by(play)
async def test_an_image_that_lags_fences_its_broker_though_the_lease_is_renewed(world: World, /) -> None:
    """The store answers and the lease is renewed, but the watch delivers nothing.

    The broker cannot know the decisions of others.
    """
    first, second = await world.started(1), await world.started(2)
    await asyncio.sleep(5)  # Until both have written what they have read of each other (witnesses).
    assert first.session.image.revision == world.disk.revision
    first.client.silent = True
    reads = first.session._follower.read

    async def no_read() -> None:
        await asyncio.sleep(0.01)
        message = "simulated"
        raise UnavailableError(message)

    first.session._follower.read = no_read
    assert await world.until(lambda: first.session.is_fenced or world.clock.monotonic_ms() > 20_000) > 0
    assert not first.session.is_fenced, "it has all changes"
    await second.session.commit(put(b"anything", b"new"))
    written_ms = world.clock.monotonic_ms()
    await world.until(lambda: first.session.is_fenced)
    assert world.clock.monotonic_ms() - written_ms <= IMAGE_AGE_MS
    assert 1 in world.truth().brokers, "its lease lives"
    first.session._follower.read = reads
    first.client.silent = False
    await world.until(lambda: not first.session.is_fenced)
    assert first.session.image.revision == world.disk.revision
    assert first.failures == []


@played_by(play)
async def test_a_watch_that_has_become_silent_is_restarted(world: World, /) -> None:
    """Everything is read before the image is too old, and the new watch continues from there."""
    first, second = await world.started(1), await world.started(2)
    first.client.dead_watches = first.client.watches
    for number in range(8):
        revision = await second.session.commit(put(b"key", b"%d" % number))
        await asyncio.sleep(1)
        assert not first.session.is_fenced
    await world.until(lambda: first.session.image.revision >= revision)
    quick = await second.session.commit(put(b"key", b"last"))
    assert await world.until(lambda: first.session.image.revision >= quick) < 50


@played_by(play)
async def test_writers_beside_the_prefix_cause_no_fence(world: World, /) -> None:
    """The watch delivers no revision that changes only other keys; the image is as current as the store anyway."""
    first = await world.started(1)
    for number in range(100):
        await world.store.transact([], [Put(b"/other/cluster", b"%d" % number)])
        await asyncio.sleep(0.4)
        assert not first.session.is_fenced
    assert first.failures == []


async def disturb(world: World, brokers: dict[int, Broker], random: Random) -> None:
    """One fault of a broker, or its end."""
    number = random.choice([1, 2, 3])
    broker = brokers[number]
    fault = random.choice(["cut", "lag", "script", "kill", "revoke", "silent"])
    if fault == "cut":
        broker.client.cut = not broker.client.cut
    elif fault == "lag":
        broker.client.watch_lag_s = random.choice([0.0, 0.01, 0.3])
    elif fault == "script":
        broker.client.fail_next(random.choice(["unavailable", "lost", "unanswered"]), after=random.randrange(3))
    elif fault == "silent":
        broker.client.silent = not broker.client.silent
    elif fault == "revoke":
        pair = world.disk.keys.get(PREFIX + keys.broker(number))
        if pair is not None:
            broker.client.cut = False
            await world.until(lambda broker=broker: not broker.session.is_fenced)
            broker.session.registration.set_epoch(0)  # At the same moment: other tests cover early ends of leases.
            broker.session._lease.lost.set()
            await world.store.lease_revoke(pair.lease)
    else:
        broker.node.kill()
        brokers[number] = Broker(world, number)
        world.brokers.append(brokers[number])
        brokers[number].node.spawn(brokers[number].session.start(REGISTRATION))


@pytest.mark.parametrize("seed", [*range(2), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 12))])
def test_sessions_under_faults(seed: int) -> None:
    """Links are cut, answers are lost, watches lag, brokers fail and return.

    At every moment: an unfenced session has the registration that the store has; there is one controller; each write of
    a session happens while the store has its registration; an image never goes back. In the end all brokers have the
    same image.
    """

    async def scenario(world: World) -> None:
        random = Random(seed)
        brokers = {number: await world.started(number) for number in (1, 2, 3)}

        def check() -> None:
            truth = world.truth()
            for number, broker in brokers.items():
                session = broker.session
                if not session.is_fenced:
                    assert truth.broker_epoch(number) == session.broker_epoch, (
                        "the store ended the registration of a broker that acts"
                    )

        async def watch_invariants() -> None:
            while True:
                check()
                await asyncio.sleep(0.01)

        async def write(number: int) -> None:
            while True:
                session = brokers[number].session
                try:
                    await session.commit(put(b"written/%d" % number, b"%d" % session.broker_epoch))
                except (SessionError, MetadataStoreError):
                    await asyncio.sleep(0.05)
                await asyncio.sleep(random.uniform(0, 0.2))

        writing = [world.loop.create_task(write(number)) for number in brokers]
        checking = world.loop.create_task(watch_invariants())
        for _ in range(30):
            await disturb(world, brokers, random)
            await asyncio.sleep(random.choice([0.05, 0.5, 2.0, 6.0]))
        for broker in brokers.values():
            broker.client.cut = broker.client.silent = False
            broker.client.watch_lag_s = 0.0
        await world.until(lambda: not any(broker.session.is_fenced for broker in brokers.values()))
        for task in writing:
            task.cancel()
        await asyncio.sleep(8)
        checking.cancel()
        assert (await asyncio.gather(checking, return_exceptions=True))[0].__class__ is asyncio.CancelledError
        truth = world.truth()
        assert sorted(truth.brokers) == [1, 2, 3]
        assert truth.controller_id in {1, 2, 3}
        for number, broker in brokers.items():
            assert broker.session.image.topics == truth.topics
            assert broker.session.image.brokers == truth.brokers
            assert broker.session.is_controller == (truth.controller_id == number)
            assert broker.revisions == sorted(set(broker.revisions))
            assert broker.failures == []

    play(scenario, seed=seed)
