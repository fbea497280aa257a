"""The steps of a registration (rule DR8).

Numbers, directories that lost something, predecessors, answers lost at any moment.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Mapping
from typing import Any

import msgspec
import pytest

from lowtide.metadata import keys
from lowtide.metadata.broker_image import Replicas
from lowtide.metadata.errors import DuplicateBrokerError, OldBrokerError, StoreWentBackError
from lowtide.metadata.image import MetadataImage
from lowtide.metadata.image_change import load_image
from lowtide.metadata.records import ERASURES_LEVEL, FeaturesRecord, Listener, RegistrationRecord, decode, encode
from lowtide.metadata.registration import BrokerRegistration
from lowtide.metadata.session import MetadataSession, SessionPorts, SessionSettings
from lowtide.metadata.store import Delete, Put, UnavailableError
from lowtide.runtime.random import Random
from lowtide.runtime.simulated_loop import SimulatedLoop, run_simulation
from lowtide.runtime.simulated_ports import SimulatedClock
from lowtide.runtime.tasks import TaskRegistry
from lowtide.simulation.memory_store import MemoryClient, MemoryDisk, MemoryStore
from tests.examples import one_in
from tests.scenarios import played_by

PREFIX = b"/lowtide/"
TIME_TO_LIVE_MS = 3000
LISTENERS = (Listener("PLAINTEXT", "127.0.0.1", 9092),)
REGISTRATION = BrokerRegistration(LISTENERS)
TOPIC = b"T" * 16


class Directories:
    """The parts of log directories that a registration uses.

    A number in each, and one replica, of the partition with its position.
    """

    def __init__(self, *numbers: int | None, world: World) -> None:
        self.numbers = {f"/disk{place}": number for place, number in enumerate(numbers)}
        self.written: list[tuple[int, tuple[str, ...], RegistrationRecord]] = []
        self.world = world
        self.expected = len(numbers)
        self.lacks = False

    def registrations(self) -> Mapping[str, int | None]:
        return dict(self.numbers)

    def write_registration(self, number: int, directories: Collection[str]) -> None:
        for path in directories:
            self.numbers[path] = number
        if directories:
            self.written.append((number, tuple(directories), self.world.record(1)))

    def missing_replicas(self, image: MetadataImage, unsound: Collection[str]) -> Replicas:
        held = [number for number, path in enumerate(self.numbers) if path not in unsound]
        missing = frozenset(number for number in range(self.expected) if number not in held)
        return {TOPIC: missing} if missing else {}

    def may_lack_records(self) -> bool:
        return self.lacks

    def note_page_cache(self) -> None:
        self.lacks = False


class World:
    """A store that several brokers share."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self.loop = loop
        self.clock = SimulatedClock(loop)
        self.disk = MemoryDisk()
        self.store = MemoryStore(self.disk, clock=self.clock, random=Random(7), loop=loop)
        self.failures: list[BaseException] = []
        self.tasks = TaskRegistry(lambda _name, error: self.failures.append(error))
        self.clients: list[MemoryClient] = []

    def session(self, broker_id: int = 1, *, registration_timeout_ms: int = 10_000) -> MetadataSession:
        settings = SessionSettings(
            time_to_live_ms=TIME_TO_LIVE_MS, keep_alive_ms=500, registration_timeout_ms=registration_timeout_ms
        )
        self.clients.append(MemoryClient(self.store, latency_ms=0.1))
        return MetadataSession(
            SessionPorts(store=self.clients[-1], clock=self.clock, tasks=self.tasks, random=Random(broker_id)),
            broker_id=broker_id,
            settings=settings,
        )

    def cut_last(self) -> None:
        """As if the process were killed: it sends nothing more."""
        self.clients[-1].cut = True

    def record(self, broker_id: int = 1) -> RegistrationRecord:
        pair = self.disk.keys.get(PREFIX + keys.registration(broker_id))
        return RegistrationRecord() if pair is None else decode(pair.key, pair.value, RegistrationRecord)

    def marks(self) -> list[tuple[int, frozenset[int]]]:
        image = load_image(self.disk.keys.values(), self.disk.revision, prefix=PREFIX)
        return [(mark.number, mark.replicas[TOPIC]) for mark in image.stale_marks.get(1, ())]

    async def set(self, *operations: Put | Delete) -> None:
        await self.store.transact(
            [], [Put(PREFIX + o.key, o.value) if isinstance(o, Put) else Delete(PREFIX + o.key) for o in operations]
        )


def play(scenario: Callable[[World], Coroutine[Any, Any, None]], seed: int = 1) -> None:
    async def run(loop: SimulatedLoop) -> None:
        world = World(loop)
        await scenario(world)
        await world.tasks.cancel_all()

    run_simulation(run, seed=seed, time_limit_s=600)


@played_by(play)
async def test_a_sound_directory_has_the_number_before_the_store_registers_it(world: World, /) -> None:
    await world.set(Put(keys.registration(1), encode(RegistrationRecord(6, 5))))
    directories = Directories(5, 6, world=world)
    session = world.session()
    await session.start(REGISTRATION, directories)
    assert directories.written == [(7, ("/disk0", "/disk1"), RegistrationRecord(7, 5))]
    assert world.record() == RegistrationRecord(7, 7)
    assert world.marks() == []
    await session.close()


@played_by(play)
async def test_a_start_after_a_power_cut_is_noted_with_the_registration(world: World, /) -> None:
    """In one transaction: no replica is elected by what the broker had before (KIP-966)."""
    directories = Directories(None, world=world)
    session = world.session()
    await session.start(REGISTRATION, directories)
    first = session.broker_epoch
    assert not session.image.may_lack_records(1, first)
    await session.close()
    directories.lacks = True
    session = world.session()
    await session.start(REGISTRATION, directories)
    assert session.image.may_lack_records(1, first)
    assert not session.image.may_lack_records(1, session.broker_epoch)
    assert not directories.lacks, "it is noted in the directories once the store knows"
    epoch = session.broker_epoch
    await session.close()
    session = world.session()
    await session.start(REGISTRATION, directories)
    assert session.image.unclean_starts == {1: epoch}, "a clean start changes nothing"
    await session.close()


@pytest.mark.parametrize("lost", [4, None])
@played_by(play)
async def test_a_directory_that_is_behind_is_marked_before_it_has_the_number(world: World, /, lost: int | None) -> None:
    """It was restored from a backup, or replaced by an empty one."""
    await world.set(Put(keys.registration(1), encode(RegistrationRecord(5, 5))))
    directories = Directories(5, lost, world=world)
    session = world.session()
    await session.start(REGISTRATION, directories)
    sound, unsound = directories.written
    assert sound == (6, ("/disk0",), RegistrationRecord(6, 5))
    assert unsound == (6, ("/disk1",), RegistrationRecord(6, 6))
    assert world.marks() == [(6, frozenset({1}))]
    assert session.image.is_stale(1, TOPIC, 1, member_epoch=session.broker_epoch - 1)
    assert not session.image.is_stale(1, TOPIC, 1, member_epoch=session.broker_epoch)
    await session.close()


@played_by(play)
async def test_a_replica_that_no_directory_has_is_marked(world: World, /) -> None:
    """Its directory is no longer among ours, and its state is unknown."""
    await world.set(Put(keys.registration(1), encode(RegistrationRecord(5, 5))))
    directories = Directories(5, world=world)
    directories.expected = 3
    session = world.session()
    await session.start(REGISTRATION, directories)
    assert world.marks() == [(6, frozenset({1, 2}))]
    await session.close()


@played_by(play)
async def test_marks_survive_later_starts(world: World, /) -> None:
    """A directory whose number is current again still lacks the lost records."""
    await world.set(Put(keys.registration(1), encode(RegistrationRecord(5, 5))))
    directories = Directories(5, 3, world=world)
    for _ in range(3):
        session = world.session()
        await session.start(REGISTRATION, directories)
        await session.close()
    assert world.record() == RegistrationRecord(8, 8)
    assert directories.numbers == {"/disk0": 8, "/disk1": 8}
    assert world.marks() == [(6, frozenset({1}))]


@played_by(play)
async def test_a_number_is_above_those_of_a_store_that_was_lost(world: World, /) -> None:
    """Directories move to a new store: their numbers must not look like later registrations there."""
    directories = Directories(40, 41, world=world)
    refused = world.session()
    with pytest.raises(StoreWentBackError, match="registered 0 times there, and has number 41"):
        await refused.start(REGISTRATION, directories)
    assert refused.is_fenced
    assert world.record() == RegistrationRecord(), "nothing is written to such a store"
    await refused.close()
    await world.set(Delete(keys.SUSPENSION))
    session = world.session()
    await session.start(REGISTRATION, directories, adopts=True)
    assert world.record() == RegistrationRecord(42, 42)
    assert session.registrar.store_is_older
    await session.close()
    again = world.session()
    await again.start(REGISTRATION, directories)
    assert not again.registrar.store_is_older
    await again.close()


@played_by(play)
async def test_a_dead_predecessor_is_not_waited_for(world: World, /) -> None:
    """A killed broker that restarts at once has the current registration's number and holds its directories' locks."""
    directories = Directories(None, world=world)
    first = world.session()
    await first.start(REGISTRATION, directories)
    world.cut_last()
    begun = world.clock.monotonic_ms()
    second = world.session()
    await second.start(REGISTRATION, directories)
    assert world.clock.monotonic_ms() - begun < 100
    assert second.broker_epoch > first.broker_epoch
    await second.close()


@played_by(play)
async def test_a_duplicate_is_refused_and_leaves_no_trace(world: World, /) -> None:
    """Another process with this broker's id, and directories of its own.

    It stops, and the first continues, also after a lost lease.
    """
    first = world.session()
    await first.start(REGISTRATION, Directories(None, world=world))
    second = world.session(registration_timeout_ms=2 * TIME_TO_LIVE_MS)
    other = Directories(None, world=world)
    with pytest.raises(DuplicateBrokerError, match="another broker with id 1 is alive"):
        await second.start(REGISTRATION, other)
    await second.close()
    assert other.numbers == {"/disk0": None}, "a failed start does not mark a possibly stale directory as sound"
    epoch = first.broker_epoch
    await world.set(Delete(keys.broker(1)))
    while first.broker_epoch in {0, epoch}:
        await asyncio.sleep(0.1)
    assert world.failures == []
    await first.close()


@played_by(play)
async def test_a_process_whose_registration_was_replaced_ends(world: World, /) -> None:
    """Its lease was lost, and another process registered as this broker.

    Its directories no longer belong to the broker.
    """
    first = world.session()
    await first.start(REGISTRATION, Directories(None, world=world))
    first_client = world.clients[-1]
    first_client.cut = True
    await asyncio.sleep(TIME_TO_LIVE_MS / 1000 + 0.5)
    second = world.session()
    await second.start(REGISTRATION, Directories(None, world=world))
    await second.close()
    first_client.cut = False
    await asyncio.sleep(5)
    assert [type(failure) for failure in world.failures] == [DuplicateBrokerError]
    assert first.is_fenced
    await first.close()


@pytest.mark.parametrize("how", ["unavailable", "lost", "unanswered"])
@pytest.mark.parametrize("after", range(6))
@played_by(play)
async def test_any_transaction_of_a_start_may_fail(world: World, /, how: str, after: int) -> None:
    """The broker ends up registered once, by a number in its directories, and only lost directories are marked."""
    await world.set(Put(keys.registration(1), encode(RegistrationRecord(5, 5))))
    directories = Directories(5, 4, world=world)
    session = world.session()
    await session.open()
    world.clients[-1].fail_next(how, after=after)
    await session.start(REGISTRATION, directories)
    record = world.record()
    assert session.image.broker_epoch(1) == session.broker_epoch
    assert set(directories.numbers.values()) <= {record.registered, record.drawn}
    assert {number for _, number in world.marks()} == {frozenset({1})}
    epoch = session.broker_epoch
    await world.set(Delete(keys.broker(1)))
    while session.broker_epoch in {0, epoch}:
        await asyncio.sleep(0.1)
    assert world.failures == []
    await session.close()


@pytest.mark.parametrize("seed", one_in(2, range(20)))
def test_starts_that_break_off_anywhere(seed: int) -> None:
    """Starts are killed at any moment, repeatedly: a directory that lost records is marked, any other is not."""

    async def scenario(world: World) -> None:
        random = Random(seed)
        await world.set(Put(keys.registration(1), encode(RegistrationRecord(5, 5))))
        directories = Directories(5, 5, world=world)
        lost: frozenset[int] = frozenset()
        for _ in range(12):
            if random.random() < 0.2:
                directories.numbers["/disk1"] = random.choice([None, world.record().registered - 1])
                lost = frozenset({1})
            marks = len(world.marks())
            killed = world.session()
            task = world.loop.create_task(killed.start(REGISTRATION, directories))
            await asyncio.sleep(random.uniform(0, 0.01))
            world.cut_last()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            found = world.marks()
            assert {numbers for _, numbers in found} <= {lost}
            behind = [
                number or -1 for number in directories.numbers.values() if (number or -1) < world.record().registered
            ]
            assert not lost or behind or len(found) > 0, "a lost directory is marked, or will be detected"
            assert len(found) >= marks
        world.clients[-1].cut = False
        last = world.session()
        await last.start(REGISTRATION, directories)
        assert {numbers for _, numbers in world.marks()} == ({lost} if lost else set())
        await last.close()

    play(scenario, seed=seed)


@played_by(play)
async def test_a_broker_below_what_the_cluster_has_agreed_to_is_refused(world: World, /) -> None:
    """Also when the two happen at the same time: the second one sees the first."""
    old = BrokerRegistration(LISTENERS, metadata_level=0)
    session = world.session()
    await session.start(old)
    assert session.image.brokers[1].metadata_level == 0
    seen = session.image.features_revision
    assert seen > 0, "a change based on an image without this broker conflicts"
    await session.close()
    await world.set(Put(keys.FEATURES, encode(FeaturesRecord(log_start_reporting=1))))
    refused = world.session()
    with pytest.raises(OldBrokerError, match=r"inter\.broker\.protocol\.version"):
        await refused.start(old)
    await refused.close()
    assert world.disk.keys.get(PREFIX + keys.broker(1)) is None
    newer = world.session()
    await newer.start(REGISTRATION)
    await newer.close()


@played_by(play)
async def test_a_broker_without_the_level_that_the_cluster_relies_on_is_refused(world: World, /) -> None:
    """It would keep records that erasures name."""
    await world.set(Put(keys.FEATURES, encode(FeaturesRecord(1, 1, required_level=ERASURES_LEVEL))))
    older, newer = (msgspec.structs.replace(REGISTRATION, metadata_level=ERASURES_LEVEL - each) for each in (1, 0))
    refused = world.session()
    with pytest.raises(OldBrokerError, match="it needs a newer Lowtide"):
        await refused.start(older)
    await refused.close()
    session = world.session()
    await session.start(newer)
    await session.close()


@played_by(play)
async def test_a_store_that_is_away_is_waited_for_until_the_time_is_over(world: World, /) -> None:
    session = world.session(registration_timeout_ms=5000)
    await session.open()
    world.cut_last()
    begun = world.clock.monotonic_ms()
    with pytest.raises(UnavailableError):
        await session.start(REGISTRATION)
    assert 5000 <= world.clock.monotonic_ms() - begun < 7000
    await session.close()


@played_by(play)
async def test_the_description_of_a_broker_survives_its_registration(world: World, /) -> None:
    """Its address and last broker epoch are kept until it is unregistered, and again from its next registration on."""
    session = world.session()
    await session.start(BrokerRegistration(LISTENERS, rack="r"))
    epoch = session.broker_epoch
    assert session.image.fenced_brokers == {}
    await session.close()
    observer = world.session(2)
    await observer.start(REGISTRATION)
    gone = observer.image.fenced_brokers[1]
    assert (gone.epoch, gone.listeners, gone.rack) == (epoch, LISTENERS, "r")
    await world.set(Delete(keys.known_broker(1)))
    session = world.session()
    await session.start(REGISTRATION)
    assert session.image.known_brokers[1].epoch == session.broker_epoch > epoch
    await session.close()
    await observer.close()
