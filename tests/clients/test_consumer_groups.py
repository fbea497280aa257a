"""`group.protocol=consumer` (KIP-848) with confluent-kafka: sharing, reassignment, patterns, and classic members."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from confluent_kafka import Consumer, ConsumerGroupState, ConsumerGroupType
from confluent_kafka.admin import AdminClient

from lowtide.testing.cluster import LowtideCluster

from .driver import OutgoingRecord, until
from .driver_confluent import Confluent

PARTITIONS = {0, 1, 2, 3}
HEARTBEAT_MS = 300
SETTINGS = {
    "group.initial.rebalance.delay.ms": "0",
    "group.consumer.min.heartbeat.interval.ms": str(HEARTBEAT_MS),
    "group.consumer.heartbeat.interval.ms": str(HEARTBEAT_MS),
    "group.consumer.min.session.timeout.ms": "3000",
    "group.consumer.session.timeout.ms": "3000",
    "group.consumer.assignment.interval.ms": "100",
}


@pytest.fixture(scope="module")
def broker() -> Iterator[LowtideCluster]:
    """A broker whose members send frequent heartbeats."""
    with LowtideCluster(config=SETTINGS) as cluster:
        yield cluster


@pytest.fixture
def name() -> str:
    """A topic and a group for this test alone."""
    return f"shared-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def other(broker: LowtideCluster, name: str) -> Confluent:
    driver = Confluent(broker.bootstrap)
    driver.create_topic(name, len(PARTITIONS), {})
    return driver


@pytest.fixture
def consumer(broker: LowtideCluster, name: str) -> Iterator[Callable[..., Consumer]]:
    """Creates consumers, which end with the test."""
    made: list[Consumer] = []

    def make(protocol: str = "consumer", topic: str | None = None, **more: str) -> Consumer:
        chosen = {
            "partition.assignment.strategy": "cooperative-sticky",
            "session.timeout.ms": "6000",
            "heartbeat.interval.ms": "200",
        }
        consumer = Consumer(
            {
                "bootstrap.servers": broker.bootstrap,
                "broker.address.family": "v4",
                "group.id": name,
                "group.protocol": protocol,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": "false",
                **(chosen if protocol == "classic" else {}),
                **more,
            }
        )
        made.append(consumer)
        consumer.subscribe([topic or name])
        return consumer

    yield make
    for consumer in made:
        consumer.close()


def numbers(consumer: Consumer) -> set[int]:
    return {place.partition for place in consumer.assignment()}


def poll(consumers: Sequence[Consumer]) -> list[tuple[int, int]]:
    found: list[Any] = []
    for each in consumers:
        for message in each.consume(100, 0.05):
            assert message.error() is None, message.error()
            found.append((message.partition(), message.offset()))
    return found


def poll_until_shared(consumers: Sequence[Consumer], *, everybody_has_some: bool = True) -> None:
    """Polls in turn until each partition has one owner."""

    def shared() -> bool:
        poll(consumers)
        parts = [numbers(each) for each in consumers]
        return (
            (all(parts) or not everybody_has_some)
            and sum(map(len, parts)) == len(PARTITIONS)
            and set().union(*parts) == PARTITIONS
        )

    until(shared)


def state(broker: LowtideCluster, name: str) -> tuple[ConsumerGroupType, ConsumerGroupState]:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    listed = admin.list_consumer_groups().result()
    assert not listed.errors
    (row,) = [row for row in listed.valid if row.group_id == name]
    return row.type, row.state


def test_members_share_leave_and_continue_at_the_committed_offset(
    broker: LowtideCluster, other: Confluent, name: str, consumer: Callable[..., Consumer]
) -> None:
    for partition in PARTITIONS:
        other.produce(name, [OutgoingRecord(None, b"%d" % number) for number in range(3)], partition=partition)
    first = consumer()
    found: list[tuple[int, int]] = []

    def has_all() -> bool:
        found.extend(poll([first]))
        return len(found) >= 3 * len(PARTITIONS)

    until(has_all)
    assert sorted(found) == [(partition, offset) for partition in sorted(PARTITIONS) for offset in range(3)]
    first.commit(asynchronous=False)
    second = consumer()
    poll_until_shared([first, second])
    assert state(broker, name) == (ConsumerGroupType.CONSUMER, ConsumerGroupState.STABLE)
    second.close()
    poll_until_shared([first])
    first.close()
    assert state(broker, name)[1] is ConsumerGroupState.EMPTY
    third = consumer()
    other.produce(name, [OutgoingRecord(None, b"new")], partition=2)
    again: list[tuple[int, int]] = []

    def has_new() -> bool:
        again.extend(poll([third]))
        return bool(again)

    until(has_new)
    assert again == [(2, 3)]


@pytest.mark.slow
def test_a_pattern_follows_topics_that_are_created_later(
    other: Confluent, name: str, consumer: Callable[..., Consumer]
) -> None:
    """Heartbeats match it again, ten seconds after the last time."""
    first = consumer(topic=f"^{name}.*")
    topics: set[str] = set()

    def has(count: int) -> bool:
        poll([first])
        topics.update(place.topic for place in first.assignment())
        return len(topics) == count

    until(lambda: has(1))
    other.create_topic(f"{name}-later", 1, {})
    until(lambda: has(2))


def test_a_classic_group_is_upgraded_while_it_consumes_and_downgraded_again(
    broker: LowtideCluster, other: Confluent, name: str, consumer: Callable[..., Consumer]
) -> None:
    old = consumer("classic")
    poll_until_shared([old])
    assert state(broker, name) == (ConsumerGroupType.CLASSIC, ConsumerGroupState.STABLE)
    new = consumer()
    poll_until_shared([old, new])
    assert state(broker, name)[0] is ConsumerGroupType.CONSUMER
    other.produce(name, [OutgoingRecord(None, b"a")], partition=0)
    found: list[tuple[int, int]] = []

    def has_it() -> bool:
        found.extend(poll([old, new]))
        return bool(found)

    until(has_it)
    assert found == [(0, 0)]
    new.close()
    poll_until_shared([old])
    assert state(broker, name) == (ConsumerGroupType.CLASSIC, ConsumerGroupState.STABLE)
