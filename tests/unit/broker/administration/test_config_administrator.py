"""Changing configurations in a store that other brokers use too: no change is lost, and no request waits forever."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any, cast

from lowtide.broker.administration import config_administrator as administration
from lowtide.broker.administration.config_administrator import ConfigAdministrator
from lowtide.broker.config.broker_config import load_config
from lowtide.broker.config.dynamic_config import BrokerConfigs
from lowtide.broker.config.resources import ConfiguredResource
from lowtide.broker.context import BrokerContext
from lowtide.broker.lifecycle.logger import quiet_logger
from lowtide.broker.turns import Turns
from lowtide.metadata import keys
from lowtide.metadata.records import PartitionRecord, TopicRecord, encode
from lowtide.metadata.registration import BrokerRegistration
from lowtide.metadata.session import MetadataSession, SessionPorts
from lowtide.metadata.store import Delete, Put
from lowtide.protocol.config_values import ConfigResourceType
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.types import topic_id_text
from lowtide.replication.config_changes import KeyChange, Operation
from lowtide.runtime.simulated_loop import SimulatedLoop, run_simulation
from lowtide.runtime.simulated_ports import SimulatedClock
from lowtide.runtime.tasks import TaskRegistry
from lowtide.simulation.memory_store import MemoryClient, MemoryDisk, MemoryStore
from tests.scenarios import played_by

PREFIX = b"/lowtide/"
TOPIC = ConfiguredResource(ConfigResourceType.TOPIC, "a")
TOPIC_ID = b"A" * 16


class Settled:
    """Logs that apply changes at once."""

    async def settled(self) -> None:
        pass


class Broker:
    """The parts of a broker for configurations: its session, its own configuration, and its administrator."""

    def __init__(self, world: World, node_id: int) -> None:
        self.client = MemoryClient(world.store, latency_ms=1)
        self.session = MetadataSession(
            SessionPorts(store=self.client, clock=world.clock, tasks=world.tasks, random=world.loop.random),
            broker_id=node_id,
        )
        self.configs = BrokerConfigs(load_config(settings={"node.id": str(node_id)}))
        self.session.on_image(lambda _old, new, _delta: self.configs.follow(new))
        turns = Turns(asyncio.get_running_loop(), world.clock)
        parts = SimpleNamespace(
            configs=self.configs, metadata=self.session, assigned=Settled(), log=quiet_logger(), turns=turns
        )
        self.administrator = ConfigAdministrator(cast("BrokerContext", parts), ())

    async def set(self, resource: ConfiguredResource, **configs: str) -> ErrorCode | None:
        changes = [KeyChange(name.replace("_", "."), Operation.SET, value) for name, value in configs.items()]
        refusal = await self.administrator.alter(resource, changes, validate_only=False)
        return None if refusal is None else refusal.error_code


class World:
    """A store with a topic, and two brokers on it."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self.loop = loop
        self.clock = SimulatedClock(loop)
        self.tasks = TaskRegistry(
            lambda name, error: loop.call_exception_handler({"message": name, "exception": error})
        )
        self.store = MemoryStore(MemoryDisk(), clock=self.clock, random=loop.random, loop=loop)
        self.brokers = [Broker(self, node_id) for node_id in (0, 1)]

    async def start(self) -> None:
        record = PartitionRecord(replicas=(0,), isr=(0,), isr_epochs=(1,), leader=0, leader_epoch=0, partition_epoch=0)
        topic = encode(TopicRecord(topic_id_text(TOPIC_ID), 1))
        await self.store.transact(
            [], [Put(PREFIX + keys.topic("a"), topic), Put(PREFIX + keys.partition(TOPIC_ID, 0), encode(record))]
        )
        for broker in self.brokers:
            await broker.session.start(BrokerRegistration(()))

    @property
    def topic_configs(self) -> dict[str, str]:
        return dict(self.brokers[0].session.image.topics["a"].configs)


def play(scenario: Callable[[World], Coroutine[Any, Any, None]]) -> None:
    async def begin(loop: SimulatedLoop) -> None:
        world = World(loop)
        await world.start()
        await scenario(world)
        for broker in world.brokers:
            await broker.session.close()
        await world.tasks.cancel_all()

    run_simulation(begin, 1, time_limit_s=600)


@played_by(play)
async def test_changes_at_once_through_one_broker_are_all_made(world: World, /) -> None:
    """They take turns: each sees the result of the previous one."""
    wanted = {
        f"{name}.ms": "5000" for name in ("retention", "segment", "flush", "file.delete.delay", "delete.retention")
    }
    codes = await asyncio.gather(
        *(world.brokers[0].set(TOPIC, **{name.replace(".", "_"): value}) for name, value in wanted.items())
    )
    assert codes == [None] * len(wanted)
    assert world.topic_configs == wanted


@played_by(play)
async def test_changes_at_once_through_two_brokers_are_all_made(world: World, /) -> None:
    """A change that finds a newer revision in the store is decided again. Only one of the brokers is controller."""
    names = (
        "retention_ms",
        "segment_ms",
        "flush_ms",
        "flush_messages",
        "file_delete_delay_ms",
        "delete_retention_ms",
    )
    writes = [
        broker.set(TOPIC, **{name: "5000"})
        for number, name in enumerate(names)
        for broker in [world.brokers[number % 2]]
    ]
    appends = [
        broker.administrator.alter(
            TOPIC, [KeyChange("cleanup.policy", Operation.APPEND, "compact")], validate_only=False
        )
        for broker in world.brokers
    ]
    assert await asyncio.gather(*writes, *appends) == [None] * (len(names) + 2)
    wanted = {name.replace("_", "."): "5000" for name in names}
    assert world.topic_configs == {**wanted, "cleanup.policy": "delete,compact"}


@played_by(play)
async def test_a_change_that_always_conflicts_is_refused(world: World, /) -> None:
    """After a bounded number of attempts, with a retriable error."""
    hurried = world.brokers[0]
    commit, attempts = hurried.session.commit, 0

    async def commit_after_another(plan: Any) -> int:
        nonlocal attempts
        attempts += 1
        assert await world.brokers[1].set(TOPIC, retention_ms=str(attempts)) is None
        return await commit(plan)

    hurried.session.commit = commit_after_another
    assert await hurried.set(TOPIC, segment_ms="5000") is ErrorCode.REQUEST_TIMED_OUT
    assert attempts == administration.ATTEMPTS
    assert world.topic_configs == {"retention.ms": str(attempts)}


@played_by(play)
async def test_a_change_of_two_keys_that_another_change_makes_impossible_is_refused(world: World, /) -> None:
    """Keys that were valid together at the decision are checked again together with the earlier change."""
    codes = await asyncio.gather(
        world.brokers[0].set(TOPIC, min_compaction_lag_ms="10"),
        world.brokers[1].set(TOPIC, max_compaction_lag_ms="9"),
    )
    assert sorted(codes, key=str) == [ErrorCode.INVALID_CONFIG, None]
    assert len(world.topic_configs) == 1


@played_by(play)
async def test_brokers_apply_what_is_set_on_all_and_on_them(world: World, /) -> None:
    first, second = world.brokers
    everyone, one, other = (ConfiguredResource(ConfigResourceType.BROKER, name) for name in ("", "0", "1"))
    assert await first.set(everyone, message_max_bytes="3000") is None
    assert await second.set(other, message_max_bytes="2000") is None
    await second.session.wait_for(first.session.image.revision)
    await first.session.wait_for(second.session.image.revision)
    assert [broker.configs.current.message_max_bytes for broker in world.brokers] == [3000, 2000]
    assert await second.set(one, message_max_bytes="1") is ErrorCode.INVALID_REQUEST
    assert await first.administrator.replace(everyone, {}, validate_only=False) is None
    assert first.configs.current == first.configs.started_with


@played_by(play)
async def test_a_check_changes_nothing(world: World, /) -> None:
    administrator = world.brokers[0].administrator
    revision = world.brokers[0].session.image.revision
    assert await administrator.replace(TOPIC, {"retention.ms": "5"}, validate_only=True) is None
    assert await administrator.replace(TOPIC, {"retention.ms": "x"}, validate_only=True) is not None
    assert await administrator.replace(TOPIC, {}, validate_only=False) is None
    assert (world.topic_configs, world.brokers[0].session.image.revision) == ({}, revision)


@played_by(play)
async def test_a_topic_that_is_deleted_meanwhile_is_unknown(world: World, /) -> None:
    """The change is decided again and finds no topic; it leaves nothing behind for a new topic of that name."""
    broker = world.brokers[0]
    changing = asyncio.ensure_future(broker.set(TOPIC, retention_ms="5"))
    gone = [Delete(PREFIX + keys.topic("a")), Delete(PREFIX + keys.partition(TOPIC_ID, 0))]
    await world.store.transact([], gone)
    assert await changing is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert await world.store.get(PREFIX + keys.topic_config("a")) is None
