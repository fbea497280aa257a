"""A broker's session, on virtual time.

Registration, fencing, lost answers, lost leases, gaps in the watch, controllers that fail.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

import pytest

from lowtide.metadata import keys, local
from lowtide.metadata.changes import ChangePlan, Step
from lowtide.metadata.engine import HISTORY_REVISIONS
from lowtide.metadata.errors import (
    ConflictError,
    DuplicateBrokerError,
    FencedError,
    InconsistentClusterError,
    NotControllerError,
    SessionError,
)
from lowtide.metadata.image import ImageDelta, MetadataImage
from lowtide.metadata.memory import MemoryClient, MemoryDisk, MemoryStore
from lowtide.metadata.records import Listener
from lowtide.metadata.registration import BrokerRegistration
from lowtide.metadata.session import MetadataSession, SessionPorts, SessionSettings
from lowtide.metadata.store import AmbiguousError, Compare, Delete, Put, UnavailableError
from lowtide.runtime.simulated_loop import SimulatedLoop, run_simulation
from lowtide.runtime.simulated_ports import SimulatedClock
from lowtide.runtime.tasks import TaskRegistry
from tests.scenarios import played_by

if TYPE_CHECKING:
    from lowtide.metadata.session import Reconcile

SETTINGS = SessionSettings(prefix=b"/test/", time_to_live_ms=4000, keep_alive_ms=500, registration_timeout_ms=20_000)
REGISTRATION = BrokerRegistration((Listener("PLAINTEXT", "host", 9092),))
PREFIX, TIME_TO_LIVE_MS = SETTINGS.prefix, SETTINGS.time_to_live_ms


class Broker:
    """One simulated process: a session, its connection to the store, and the images that it received."""

    def __init__(self, world: World, broker_id: int, reconcile: Reconcile | None) -> None:
        self.node = world.loop.start_node(f"broker-{broker_id}")
        self.client = MemoryClient(world.store, latency_ms=0.2)
        self.failures: list[BaseException] = []
        self.shown: list[tuple[MetadataImage, MetadataImage, ImageDelta]] = []
        self.session = MetadataSession(
            SessionPorts(
                store=self.client,
                clock=world.clock,
                tasks=TaskRegistry(lambda _name, error: self.failures.append(error)),
                random=world.loop.random,
            ),
            broker_id=broker_id,
            settings=SETTINGS,
            reconcile=reconcile,
        )
        self.session.on_image(lambda old, new, delta: self.shown.append((old, new, delta)))

    async def start(self) -> None:
        await self.node.spawn(self.session.start(REGISTRATION))


class World:
    """A simulated etcd and the brokers on it."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self.loop = loop
        self.clock = SimulatedClock(loop)
        self.disk = MemoryDisk()
        self.store = MemoryStore(self.disk, clock=self.clock, random=loop.random, loop=loop)

    def broker(self, broker_id: int, reconcile: Reconcile | None = None) -> Broker:
        return Broker(self, broker_id, reconcile)

    async def started(self, broker_id: int, reconcile: Reconcile | None = None) -> Broker:
        broker = self.broker(broker_id, reconcile)
        await broker.start()
        return broker

    async def value(self, key: bytes) -> bytes | None:
        pair = await self.store.get(PREFIX + key)
        return None if pair is None else pair.value

    async def until(self, condition: Callable[[], bool]) -> int:
        """Let time pass until the condition holds. Returns the time in milliseconds."""
        begun = self.clock.monotonic_ms()
        while not condition():
            await asyncio.sleep(0.005)
        return self.clock.monotonic_ms() - begun


def play(scenario: Callable[[World], Coroutine[Any, Any, None]], seed: int = 1) -> None:
    run_simulation(lambda loop: scenario(World(loop)), seed, time_limit_s=600)


def put(key: bytes, value: bytes, *compares: Compare, controller: bool = False) -> ChangePlan:
    return ChangePlan((Step((Put(key, value),), compares),), needs_controller=controller)


@played_by(play)
async def test_a_sole_broker_is_registered_and_controller_when_start_returns(world: World, /) -> None:
    """A broker needs these before it serves.

    Its epoch, a live lease, the controller's fence, and an image with them.
    """
    broker = await world.started(7)
    session = broker.session
    assert session.image.brokers[7].epoch == session.broker_epoch > 0
    assert session.image.brokers[7].listeners == REGISTRATION.listeners
    assert session.is_controller
    assert not session.is_fenced
    assert session.image.cluster_id == session.cluster_id == (await world.value(keys.CLUSTER_ID) or b"").decode()
    assert len(session.cluster_id) == 22
    revisions = [(old.revision, new.revision) for old, new, _ in broker.shown]
    assert all(earlier[1] == later[0] for earlier, later in itertools.pairwise(revisions)), "images follow each other"


@played_by(play)
async def test_idle_costs_no_writes(world: World, /) -> None:
    """An hour of keep-alives writes nothing to the disk, and the broker keeps its registration."""
    broker = await world.started(1)
    writes, epoch = (
        world.disk.writes + 1,
        broker.session.broker_epoch,
    )  # One records that the registration was acted upon.
    await asyncio.sleep(500)
    assert world.disk.writes == writes
    assert broker.session.broker_epoch == epoch
    assert not broker.session.is_fenced


@played_by(play)
async def test_after_a_restart_the_epoch_is_higher_and_nothing_is_waited_for(world: World, /) -> None:
    """A killed sole broker and its embedded store restart at once: no lease of the earlier process delays them."""
    broker = await world.started(1)
    await broker.session.wait_for(await broker.session.commit(put(b"k", b"v")))
    epoch = broker.session.broker_epoch
    broker.node.kill()
    world.store.crash()
    world.store = MemoryStore(world.disk, clock=world.clock, random=world.loop.random, loop=world.loop)
    begun = world.clock.monotonic_ms()
    again = await world.started(1)
    assert world.clock.monotonic_ms() - begun < 50
    assert again.session.broker_epoch > epoch
    assert again.session.is_controller
    assert again.session.cluster_id == broker.session.cluster_id
    assert await world.value(b"k") == b"v"


@played_by(play)
async def test_the_cluster_id_of_the_directories_is_kept_or_refused(world: World, /) -> None:
    """A new store takes the id that the log directories have.

    A store of another cluster is refused before anything is registered.
    """
    first = world.broker(1)
    assert await first.session.open("known-cluster") == "known-cluster"
    assert await first.session.open() == "known-cluster"
    await first.start()
    with pytest.raises(InconsistentClusterError, match="known-cluster.*other-cluster"):
        await world.broker(2).session.open("other-cluster")
    assert await world.value(keys.broker(2)) is None


@played_by(play)
async def test_writes_carry_the_broker_epoch(world: World, /) -> None:
    """A broker whose lease the store ended writes nothing, even if it does not know yet."""
    broker = await world.started(1)
    session = broker.session
    await session.commit(put(b"k", b"1"))
    await world.store.transact([], [Delete(PREFIX + keys.broker(1))])
    with pytest.raises(FencedError):
        await session.commit(put(b"k", b"2"))
    with pytest.raises(FencedError):
        await session.allocate_producer_ids()
    assert await world.value(b"k") == b"1"


@played_by(play)
async def test_controller_writes_carry_the_controllers_fence(world: World, /) -> None:
    """The store refuses a deposed controller; a broker that knows that it is not controller sends nothing."""
    first, second = await world.started(1), await world.started(2)
    assert first.session.is_controller
    assert not second.session.is_controller
    with pytest.raises(NotControllerError):
        await second.session.commit(put(b"k", b"2", controller=True))
    first.client.cut = True  # So that the deposition does not reach it.
    await world.store.transact([], [Delete(PREFIX + keys.CONTROLLER)])
    await world.until(lambda: second.session.is_controller)
    assert first.session.is_controller, "as far as it knows"
    first.client.cut = False
    with pytest.raises(NotControllerError):
        await first.session.commit(put(b"k", b"1", controller=True))
    await second.session.commit(put(b"k", b"2", controller=True))
    assert await world.value(b"k") == b"2"


@played_by(play)
async def test_a_conflict_stops_a_plan(world: World, /) -> None:
    """Steps before the conflict are applied, those after it are not."""
    session = (await world.started(1)).session
    steps = [
        Step((Put(key, b""),), compares)
        for key, compares in ((b"a", ()), (b"b", (Compare(b"c", "create", "==", 5),)), (b"c", ()))
    ]
    with pytest.raises(ConflictError, match="/test/b"):
        await session.commit(ChangePlan(tuple(steps)))
    assert [await world.value(key) for key in (b"a", b"b", b"c")] == [b"", None, None]


@pytest.mark.parametrize("how", ["lost", "unanswered"])
@played_by(play)
async def test_a_lost_answer_is_looked_up(world: World, /, how: str) -> None:
    """Whether or not the first attempt was applied, the transaction is applied once, with the change's revision."""
    broker = await world.started(1)
    broker.client.fail_next(how)
    absent = Compare(b"k", "create", "==", 0)
    revision = await broker.session.commit(put(b"k", b"v", absent))
    pair = await world.store.get(PREFIX + b"k")
    assert pair is not None
    assert (pair.value, pair.create_revision, pair.modify_revision) == (b"v", revision, revision)
    await broker.session.wait_for(revision)


@played_by(play)
async def test_a_lost_answer_may_hide_a_conflict(world: World, /) -> None:
    """Another writer's value is not taken for the effect of our lost transaction."""
    broker = await world.started(1)
    await world.store.transact([], [Put(PREFIX + b"k", b"theirs")])
    broker.client.fail_next("lost")
    with pytest.raises(ConflictError):
        await broker.session.commit(put(b"k", b"ours", Compare(b"k", "create", "==", 0)))
    assert await world.value(b"k") == b"theirs"


@played_by(play)
async def test_what_cannot_be_looked_up_stays_ambiguous(world: World, /) -> None:
    """If the connection is cut after sending, the caller gets an ambiguous result in bounded time."""
    broker = await world.started(1)
    broker.client.fail_next("lost")
    writing = broker.node.spawn(broker.session.commit(put(b"k", b"v")))
    await asyncio.sleep(0.001)
    broker.client.cut = True
    begun = world.clock.monotonic_ms()
    with pytest.raises(AmbiguousError):
        await writing
    assert world.clock.monotonic_ms() - begun < SETTINGS.ambiguous_timeout_ms + 2000


@played_by(play)
async def test_what_was_not_sent_is_unavailable_at_once(world: World, /) -> None:
    """The caller may answer its client with a retriable error: nothing was written."""
    broker = await world.started(1)
    broker.client.fail_next("unavailable")
    with pytest.raises(UnavailableError):
        await broker.session.commit(put(b"k", b"v"))
    assert await world.value(b"k") is None


@pytest.mark.parametrize("how", ["lost", "unanswered"])
@played_by(play)
async def test_an_unanswered_registration_is_adopted(world: World, /, how: str) -> None:
    """The broker does not wait for its own lease to end, and does not run with another registration's epoch."""
    broker = world.broker(1)
    await broker.session.open()
    broker.client.fail_next(how)
    begun = world.clock.monotonic_ms()
    await broker.start()
    assert world.clock.monotonic_ms() - begun < 1000
    pair = await world.store.get(PREFIX + keys.broker(1))
    assert pair is not None
    assert broker.session.broker_epoch == pair.create_revision


@played_by(play)
async def test_a_broker_fences_itself_before_its_lease_ends_in_the_store(world: World, /) -> None:
    """Cut off from the store.

    It is fenced while its key still exists, and registers again with a higher epoch when it reconnects.
    """
    first, second = await world.started(1), await world.started(2)
    epoch = first.session.broker_epoch
    first.client.cut = True
    until_fenced = await world.until(lambda: first.session.is_fenced)
    assert 1 in second.session.image.brokers, "the others still see it as live"
    assert until_fenced <= TIME_TO_LIVE_MS * 0.8 + 10
    until_gone = until_fenced + await world.until(lambda: 1 not in second.session.image.brokers)
    assert TIME_TO_LIVE_MS - SETTINGS.keep_alive_ms - 10 <= until_gone <= TIME_TO_LIVE_MS + local.GRACE_MS + 10
    await world.until(lambda: second.session.is_controller)
    first.client.cut = False
    await world.until(lambda: not first.session.is_fenced)
    assert first.session.broker_epoch > epoch
    await world.until(lambda: 1 in second.session.image.brokers)
    assert not first.session.is_controller
    await first.session.commit(put(b"k", b"v"))


@played_by(play)
async def test_a_lease_that_the_store_lost_is_noticed_at_once(world: World, /) -> None:
    """The watch reports it before the next keep-alive would: the broker is fenced at once, and registers again soon."""
    broker = await world.started(1)
    epoch = broker.session.broker_epoch
    pair = await world.store.get(PREFIX + keys.broker(1))
    assert pair is not None
    await world.store.lease_revoke(pair.lease)
    assert await world.until(lambda: broker.session.broker_epoch != epoch) <= 20
    await world.until(lambda: not broker.session.is_fenced)
    assert broker.session.broker_epoch > epoch
    await world.until(lambda: broker.session.is_controller)
    assert broker.failures == []


@played_by(play)
async def test_an_id_that_is_in_use_is_refused_after_a_while(world: World, /) -> None:
    """The second broker with an id waits for the end of the first one's lease, which does not end, and stops."""
    first = await world.started(1)
    first_client, epoch = first.client, first.session.broker_epoch
    second = MetadataSession(
        SessionPorts(
            store=first_client, clock=world.clock, tasks=TaskRegistry(lambda *_: None), random=world.loop.random
        ),
        broker_id=1,
        settings=SETTINGS,
    )
    with pytest.raises(DuplicateBrokerError):
        await second.start(REGISTRATION)
    await second.close()
    assert first.session.broker_epoch == epoch
    assert not first.session.is_fenced


@played_by(play)
async def test_a_killed_brokers_successor_waits_for_its_lease(world: World, /) -> None:
    """On a store that survives the broker, the restarted process registers when the old lease has ended."""
    first = await world.started(1)
    epoch = first.session.broker_epoch
    first.node.kill()
    begun = world.clock.monotonic_ms()
    again = await world.started(1)
    assert TIME_TO_LIVE_MS - 1000 <= world.clock.monotonic_ms() - begun <= TIME_TO_LIVE_MS + 1100
    assert again.session.broker_epoch > epoch


@played_by(play)
async def test_a_clean_stop_frees_the_id_at_once(world: World, /) -> None:
    """Closing ends the lease: the others see the broker leave, and the next process doesn't wait."""
    first, second = await world.started(1), await world.started(2)
    await first.session.close()
    assert await world.until(lambda: second.session.is_controller) <= 100
    assert list(second.session.image.brokers) == [2]
    first.node.kill()
    begun = world.clock.monotonic_ms()
    await world.started(1)
    assert world.clock.monotonic_ms() - begun <= 100
    with pytest.raises(SessionError, match="closed"):
        await first.session.wait_for(10_000)
    with pytest.raises(FencedError):
        await first.session.commit(put(b"k", b"v"))


@pytest.mark.parametrize("seed", range(5))
def test_one_of_three_is_controller_and_another_succeeds_it(seed: int) -> None:
    """Brokers that start together agree on one controller.

    When it fails another takes over, in the next controller epoch.
    """

    async def scenario(world: World) -> None:
        brokers = {broker_id: world.broker(broker_id) for broker_id in (1, 2, 3)}
        await asyncio.gather(*(broker.start() for broker in brokers.values()))
        await world.until(lambda: all(len(broker.session.image.brokers) == 3 for broker in brokers.values()))
        (controller_id,) = {broker.session.image.controller_id for broker in brokers.values()}
        brokers.pop(controller_id).node.kill()
        took = await world.until(
            lambda: all(broker.session.image.controller_id in brokers for broker in brokers.values())
        )
        assert took <= TIME_TO_LIVE_MS + 500
        assert sum(broker.session.is_controller for broker in brokers.values()) == 1
        assert await world.value(keys.CONTROLLER_EPOCH) == b"2"

    play(scenario, seed)


@played_by(play)
async def test_the_controller_reconciles_until_nothing_is_left_to_do(world: World, /) -> None:
    """The changes of `reconcile` are made before `start` returns, and again when brokers join and leave.

    A conflict does not end it.
    """
    asked: list[MetadataImage] = []

    def want_a_note_per_broker(image: MetadataImage) -> ChangePlan:
        asked.append(image)
        if len(asked) == 1:
            return put(b"note", b"x", Compare(b"note", "create", "==", 99), controller=True)
        wanted = b",".join(b"%d" % broker_id for broker_id in sorted(image.brokers))
        return ChangePlan(()) if written == wanted else noting(wanted)

    written = b""

    def noting(wanted: bytes) -> ChangePlan:
        nonlocal written
        written = wanted
        return put(b"note", wanted, controller=True)

    first = await world.started(1, want_a_note_per_broker)
    assert await world.value(b"note") == b"1"
    second = await world.started(2)
    await world.until(lambda: written == b"1,2")
    second.node.kill()
    await world.until(lambda: written == b"1")
    assert first.failures == []


@played_by(play)
async def test_producer_ids_are_never_assigned_twice(world: World, /) -> None:
    """Blocks of a thousand from 0, by several brokers at once, also when answers are lost."""
    brokers = [await world.started(broker_id) for broker_id in (1, 2, 3)]
    for broker in brokers:
        broker.client.fail_next("unanswered", after=2)
        broker.client.fail_next("lost", after=4)
    blocks = await asyncio.gather(*(broker.session.allocate_producer_ids() for broker in brokers for _ in range(5)))
    starts = sorted(block.start for block in blocks)
    assert all(len(block) == 1000 and block.start % 1000 == 0 for block in blocks)
    assert len(set(starts)) == 15
    assert starts[0] in {0, 1000}


@played_by(play)
async def test_a_gap_in_the_watch_is_filled_by_reading_everything(world: World, /) -> None:
    """A session that was too slow reads the range again.

    The image jumps, the delta is the difference, and waits end.
    """
    broker = await world.started(1)
    second = await world.started(2)
    broker.client.cut = True
    await world.store.transact(
        [], [Put(PREFIX + b"first", b"")]
    )  # The session has it already when the connection is cut.
    for number in range(2 * HISTORY_REVISIONS + 10):
        await asyncio.gather(*(world.store.transact([], [Put(PREFIX + b"k", b"%d" % number)]) for _ in range(1)))
    revision = await second.session.commit(put(b"last", b""))
    broker.client.cut = False
    await broker.session.wait_for(revision)
    assert broker.session.image.revision >= revision
    assert 2 in broker.session.image.brokers
    assert broker.failures == []


@played_by(play)
async def test_a_store_that_was_restored_from_a_backup_stops_the_broker(world: World, /) -> None:
    """A restored backup is not followed: the same revisions would have other contents."""
    broker = await world.started(1)
    for number in range(20):
        revision = await broker.session.commit(put(b"k", b"%d" % number))
    await broker.session.wait_for(revision)
    old = MemoryStore(MemoryDisk(), clock=world.clock, random=world.loop.random, loop=world.loop)
    broker.client._store = old
    waiting = asyncio.ensure_future(broker.session.wait_for(revision + 100))
    with pytest.raises(SessionError):
        await waiting
    assert isinstance(broker.failures[0], InconsistentClusterError)
