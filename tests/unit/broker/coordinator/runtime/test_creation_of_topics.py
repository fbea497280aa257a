"""The topics of coordinators: a group's partition and coordinator, and how the topic is created and awaited."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from lowtide.broker.administration.envelopes import OF_THE_BROKER
from lowtide.broker.administration.forwarding import OWN_IMAGE_MS
from lowtide.broker.administration.topic_administrator import TopicAdministrator
from lowtide.broker.config.broker_config import load_config
from lowtide.broker.coordinator.group_settings import GroupSettings
from lowtide.broker.coordinator.runtime.offsets_topic import (
    CREATION_LIMIT_MS,
    CREATION_TIMEOUT_MS,
    GROUP_TOPIC,
    OF_OFFSETS,
    REMEMBERED_LENGTH_MAX,
    OffsetsTopic,
    java_hash,
)
from lowtide.broker.coordinator.transactions.transaction_settings import TransactionSettings
from lowtide.metadata.broker_image import BrokerImage
from lowtide.metadata.image import MetadataImage, PartitionImage, TopicImage
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from lowtide.replication.new_topics import TopicSpec
from lowtide.replication.refusal import Refusal
from lowtide.runtime.simulated_loop import SimulatedLoop, run_simulation
from lowtide.runtime.tasks import TaskRegistry

SETTINGS = GroupSettings(topic_partition_count=6, topic_replication_factor=3, topic_segment_bytes=1_000)
CONFIGS = (*OF_OFFSETS, ("segment.bytes", "1000"))
REFUSED = Refusal(ErrorCode.POLICY_VIOLATION, "not here")


def image_of(*leaders: int, brokers: int = 3, fenced: int = 0) -> MetadataImage:
    """The cluster's metadata; with `leaders` the topic is there, whose partitions these lead."""
    partitions = tuple(
        PartitionImage(
            replicas=(1,),
            isr=(1,),
            isr_epochs=(1,),
            leader=leader,
            leader_epoch=0,
            partition_epoch=0,
            modify_revision=1,
        )
        for leader in leaders
    )
    topic = TopicImage(name=GROUP_TOPIC, topic_id=bytes(16), partitions=partitions, configs={}, modify_revision=1)
    all_brokers = {number: BrokerImage(number, number, ()) for number in range(1, brokers + fenced + 1)}
    return MetadataImage(
        brokers={number: broker for number, broker in all_brokers.items() if number <= brokers},
        known_brokers=all_brokers,
        topics={GROUP_TOPIC: topic} if leaders else {},
    )


class Forwarder:
    """Sends requests to the controller, which has one answer."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.asked: list[Any] = []
        self.waited: list[tuple[bool, bool, int]] = []
        """For each wait: whether it is over without the topic, and with it, and for how long it may take."""

    async def ask(self, *request: Any) -> Any:
        self.asked.append(request)
        return self.answer

    async def wait_until(self, shows: Callable[[MetadataImage], bool], wait_ms: int) -> None:
        self.waited.append((shows(image_of()), shows(image_of(1)), wait_ms))


class World:
    """A broker whose attempts to create a topic take `seconds`, and have the next of `outcomes`."""

    def __init__(
        self,
        image: MetadataImage,
        *outcomes: Refusal | None,
        forwarder: Forwarder | None = None,
        is_controller: bool = True,
        seconds: float = 0,
    ) -> None:
        self.metadata = SimpleNamespace(image=image, is_controller=is_controller)
        self.forwarder = forwarder
        self.outcomes = list(outcomes or (None,))
        self.created: list[tuple[Any, ...]] = []
        self.lines: list[tuple[str, str]] = []
        self.seconds = seconds

    async def create_here(self, *asked: Any) -> Refusal | None:
        topic, configs, timeout_ms = asked
        self.created.append((topic, tuple(configs), timeout_ms))
        await asyncio.sleep(self.seconds)  # Of virtual time.
        return self.outcomes.pop(0)

    def topic(
        self,
        *,
        factor_is_given: bool = False,
        configs: Any = OF_OFFSETS,
        name: str = GROUP_TOPIC,
        settings: Any = SETTINGS,
    ) -> OffsetsTopic:
        log = SimpleNamespace(
            info=lambda _event, **words: self.lines.append(("info", str(words["replicas"]))),
            warning=lambda _event, **words: self.lines.append(("warning", words["reason"])),
            error=lambda _event, **words: self.lines.append(("error", words["reason"])),
        )
        tasks = TaskRegistry(lambda _name, error: self.lines.append(("failed", repr(error))))
        broker: Any = SimpleNamespace(log=log, metadata=self.metadata, tasks=tasks, config=load_config())
        administrator: Any = Administrator(self, broker)
        return OffsetsTopic(
            broker, administrator, settings, factor_is_given=factor_is_given, name=name, configs=configs
        )

    def run(self, topic: OffsetsTopic, times: int = 1) -> float:
        """Ask for the topic so many times at once; the virtual seconds until all are answered."""

        async def ask(loop: SimulatedLoop) -> float:
            await asyncio.gather(*(topic.create() for _ in range(times)))
            return loop.time()

        return run_simulation(ask, 1)


class Administrator(TopicAdministrator):
    """Asks the controller as the broker's does; as the controller, it asks the world."""

    def __init__(self, world: World, broker: Any) -> None:
        self.broker, self.forwarder = broker, world.forwarder  # a stand-in
        self.create_here = world.create_here

    async def _settled(self, deadline: float) -> bool:
        return True


# ------------------------------------------------------------------ where a group is
def test_the_partitions_that_the_topic_has_count() -> None:
    names = ["g", "group", "another", "x" * REMEMBERED_LENGTH_MAX, "x" * (REMEMBERED_LENGTH_MAX + 1)]
    to_be, there = World(image_of()).topic(), World(image_of(1, 2, 3, 1)).topic()
    assert (to_be.exists, to_be.partition_count, there.exists, there.partition_count) == (False, 6, True, 4)
    assert [to_be.partition_of(name) for name in names] == [java_hash(name) % 6 for name in names]
    assert [there.partition_of(name) for name in names] == [java_hash(name) % 4 for name in names]


def test_the_leader_of_its_partition_coordinates_a_group() -> None:
    world = World(image_of(1, 2, -1, 9))
    found = {java_hash(name) % 4: world.topic().coordinator_of(name) for name in "abcd"}
    unavailable = ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert found == {
        0: world.metadata.image.brokers[1],
        1: world.metadata.image.brokers[2],
        2: unavailable,
        3: unavailable,
    }
    assert World(image_of()).topic().coordinator_of("a") == unavailable


# ------------------------------------------------------------------ what is created
@pytest.mark.parametrize(
    ("brokers", "fenced", "factor_is_given", "factor", "lines"),
    [
        (3, 0, False, 3, []),
        (4, 0, False, 3, []),
        (2, 0, False, 2, [("info", "2")]),
        (1, 1, False, 2, [("info", "2")]),
        (2, 1, False, 3, []),
        (2, 0, True, 3, []),
    ],
)
def test_fewer_brokers_than_the_default_factor_are_enough(
    brokers: int, fenced: int, factor_is_given: bool, factor: int, lines: list[tuple[str, str]]
) -> None:
    world = World(image_of(brokers=brokers, fenced=fenced))
    world.run(world.topic(factor_is_given=factor_is_given))
    assert world.created == [(TopicSpec(GROUP_TOPIC, 6, factor), CONFIGS, CREATION_LIMIT_MS)]
    assert world.lines == lines


def test_a_topic_may_have_a_configuration_of_its_own() -> None:
    world = World(image_of(brokers=2))
    own, settings = (("retention.ms", "-1"),), TransactionSettings(topic_partition_count=6, topic_segment_bytes=1_000)
    world.run(world.topic(name="other", configs=own, settings=settings))
    configs = (*own, ("segment.bytes", "1000"), ("min.insync.replicas", "2"))
    assert world.created == [(TopicSpec("other", 6, 2), configs, CREATION_LIMIT_MS)]


def test_the_topic_is_created_once_for_all_who_ask() -> None:
    world = World(image_of(), None, None, seconds=1)
    topic = world.topic()
    assert world.run(topic, times=3) == 1
    assert len(world.created) == 1
    world.run(topic)
    assert len(world.created) == 2, "who asks after that tries again"


def test_who_asks_waits_for_a_while_and_the_creation_continues() -> None:
    world = World(image_of(), REFUSED, seconds=CREATION_TIMEOUT_MS / 1000 + 1)
    topic = world.topic()

    async def ask(loop: SimulatedLoop) -> float:
        await topic.create()
        asked_s = loop.time()
        assert world.lines == []
        await topic.create()
        return asked_s

    assert run_simulation(ask, 1) == CREATION_TIMEOUT_MS / 1000
    assert (len(world.created), world.lines) == (1, [("error", "not here")])


def test_a_creation_that_raises_is_reported_and_tried_again() -> None:
    world = World(image_of())
    world.outcomes = []
    topic = world.topic()
    assert world.run(topic) == 0
    assert [level for level, _ in world.lines] == ["failed"]
    world.outcomes = [None]
    world.run(topic)
    assert len(world.created) == 2


def test_a_topic_that_another_broker_has_just_created_is_no_failure() -> None:
    world = World(image_of(), Refusal(ErrorCode.TOPIC_ALREADY_EXISTS, "it is there"))
    world.run(world.topic())
    assert world.lines == []


def test_few_replicas_are_told_of_again_only_after_a_success() -> None:
    world = World(image_of(brokers=1), REFUSED, REFUSED, None, None)
    topic = world.topic()
    for _ in range(4):
        world.run(topic)
    assert world.lines == [("info", "1"), ("error", "not here"), ("info", "1")]


# ------------------------------------------------------------------ who creates it
def answer_of(error: ErrorCode = ErrorCode.NONE, message: str | None = None) -> CreateTopicsResponse:
    return CreateTopicsResponse(
        topics=[CreatableTopicResult(name=GROUP_TOPIC, error_code=error, error_message=message)]
    )


def test_the_controller_is_asked_and_the_topic_awaited() -> None:
    forwarder = Forwarder(answer_of())
    world = World(image_of(), forwarder=forwarder, is_controller=False)
    world.run(world.topic())
    assert world.created == []
    wanted = CreatableTopic(
        name=GROUP_TOPIC,
        num_partitions=6,
        replication_factor=3,
        assignments=[],
        configs=[CreatableTopicConfig(name=name, value=value) for name, value in CONFIGS],
    )
    request = CreateTopicsRequest(topics=[wanted], timeout_ms=CREATION_LIMIT_MS, validate_only=False)
    assert forwarder.asked == [(ApiKey.CREATE_TOPICS, 7, request, CREATION_LIMIT_MS, OF_THE_BROKER)]
    assert forwarder.waited == [(False, True, OWN_IMAGE_MS)]


@pytest.mark.parametrize(
    ("answer", "lines"),
    [
        (answer_of(ErrorCode.POLICY_VIOLATION, "not here"), [("error", "not here")]),
        (answer_of(ErrorCode.POLICY_VIOLATION), []),
        (answer_of(ErrorCode.NOT_CONTROLLER, "it has changed"), [("warning", "it has changed")]),
        (REFUSED, [("error", "not here")]),
    ],
)
def test_what_the_controller_refuses_is_logged(answer: Any, lines: list[tuple[str, str]]) -> None:
    forwarder = Forwarder(answer)
    world = World(image_of(), forwarder=forwarder, is_controller=False)
    world.run(world.topic())
    assert (world.lines, world.created, forwarder.waited) == (lines, [], [])


@pytest.mark.parametrize(("is_controller", "asked"), [(True, 0), (False, 1)])
def test_a_broker_that_is_the_controller_or_becomes_it_creates_the_topic(is_controller: bool, asked: int) -> None:
    forwarder = Forwarder(None)
    world = World(image_of(), forwarder=forwarder, is_controller=is_controller)
    world.run(world.topic())
    assert (len(forwarder.asked), len(world.created)) == (asked, 1)


def test_a_broker_without_others_creates_the_topic_itself() -> None:
    world = World(image_of(), is_controller=False)
    world.run(world.topic())
    assert (len(world.created), world.lines) == (1, [])
