"""Consumer groups with each client: partitions are shared, reassigned, and read from committed offsets."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from types import SimpleNamespace

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer

from .driver import DEADLINE_S, Driver, OutgoingRecord, until
from .driver_aiokafka import Aiokafka
from .driver_confluent import Confluent
from .driver_kafka_python import KafkaPython
from .group_members import KEEPERS, MEMBERS, AiokafkaKeeper, KafkaPythonKeeper, Member, kcat_group, member

PARTITIONS = {0, 1, 2}


@pytest.fixture
def group() -> str:
    return f"group-{uuid.uuid4().hex[:8]}"


def fill(other: Driver, topic: str, count: int) -> None:
    for partition in PARTITIONS:
        other.produce(topic, [OutgoingRecord(None, b"%d" % number) for number in range(count)], partition=partition)


def poll_until_all(members: Sequence[Member], count: int) -> dict[int, list[int]]:
    """Polls in turn until each partition gave `count` records: the offsets of each, in order of arrival."""
    found: dict[int, list[int]] = {partition: [] for partition in PARTITIONS}

    def all_there() -> bool:
        for each in members:
            for partition, offset in each.poll():
                found[partition].append(offset)
        return all(len(offsets) >= count for offsets in found.values())

    until(all_there)
    return found


def poll_until_shared(members: Sequence[Member]) -> None:
    """Polls in turn until each partition has one member and every member has one."""

    def shared() -> bool:
        for each in members:
            each.poll()
        parts = [each.assignment() for each in members]
        return all(parts) and sum(map(len, parts)) == len(PARTITIONS) and set().union(*parts) == PARTITIONS

    until(shared)


@pytest.mark.parametrize("name", MEMBERS)
def test_a_group_continues_at_its_committed_offset(
    lowtide: SimpleNamespace, other: Driver, topic: str, group: str, name: str
) -> None:
    fill(other, topic, 5)
    with member(name, lowtide.bootstrap, topic, group) as first:
        assert poll_until_all([first], 5) == {key: [0, 1, 2, 3, 4] for key in PARTITIONS}
        first.commit()
    fill(other, topic, 2)
    with member(name, lowtide.bootstrap, topic, group) as second:
        assert poll_until_all([second], 2) == {key: [5, 6] for key in PARTITIONS}


@pytest.mark.parametrize("name", MEMBERS)
def test_two_members_share_and_one_takes_over(lowtide: SimpleNamespace, topic: str, group: str, name: str) -> None:
    with member(name, lowtide.bootstrap, topic, group) as first:
        with member(name, lowtide.bootstrap, topic, group) as second:
            poll_until_shared([first, second])
        poll_until_shared([first])


@pytest.mark.parametrize("name", MEMBERS)
def test_a_static_member_returns_without_a_rebalance(
    lowtide: SimpleNamespace, other: Driver, topic: str, group: str, name: str
) -> None:
    """It gets the partitions of its previous instance, and the other keeps its own."""
    fill(other, topic, 1)
    with member(name, lowtide.bootstrap, topic, group, "one") as first:
        with member(name, lowtide.bootstrap, topic, group, "two") as second:
            poll_until_shared([first, second])
            before = second.assignment()
        with member(name, lowtide.bootstrap, topic, group, "two") as again:

            def is_back() -> bool:
                first.poll()
                again.poll()
                return bool(again.assignment())

            until(is_back)
            assert again.assignment() == before
            assert first.assignment() == PARTITIONS - before


def test_members_of_different_clients_share(lowtide: SimpleNamespace, topic: str, group: str) -> None:
    """Each has its own implementation of range assignment."""
    with (
        member(Confluent.name, lowtide.bootstrap, topic, group) as first,
        member(KafkaPython.name, lowtide.bootstrap, topic, group) as second,
    ):
        poll_until_shared([first, second])


def test_kcat_reads_as_a_member(lowtide: SimpleNamespace, other: Driver, topic: str, group: str) -> None:
    fill(other, topic, 2)
    found = kcat_group(lowtide.bootstrap, topic, group, 6)
    assert sorted(found) == [(partition, offset) for partition in PARTITIONS for offset in range(2)]


@pytest.mark.parametrize("name", KEEPERS)
def test_groups_are_listed_described_and_deleted(
    lowtide: SimpleNamespace, other: Driver, topic: str, group: str, name: str
) -> None:
    keeper = KEEPERS[name](lowtide.bootstrap)
    fill(other, topic, 3)
    with member(Confluent.name, lowtide.bootstrap, topic, group) as one:
        poll_until_all([one], 3)
        one.commit()
        assert keeper.describe(group) == ("Stable", 1)
        assert keeper.groups()[group] == "Stable"
        with pytest.raises(Exception, match=r"(?i)non.?empty"):
            keeper.delete(group)
    assert keeper.describe(group) == ("Empty", 0)
    assert keeper.committed(group, topic) == dict.fromkeys(PARTITIONS, 3)
    keeper.commit(group, topic, {0: 1})
    assert keeper.committed(group, topic) == {0: 1, 1: 3, 2: 3}
    keeper.delete(group)
    assert group not in keeper.groups()
    assert keeper.committed(group, topic) == {}


def test_single_offsets_are_deleted(lowtide: SimpleNamespace, topic: str, group: str) -> None:
    """Only kafka-python supports it."""
    keeper = KafkaPythonKeeper(lowtide.bootstrap)
    keeper.commit(group, topic, {0: 1, 1: 2})
    keeper.delete_offsets(group, topic, [0])
    assert keeper.committed(group, topic) == {1: 2}


def test_aiokafka_describes_groups(lowtide: SimpleNamespace, topic: str, group: str) -> None:
    KafkaPythonKeeper(lowtide.bootstrap).commit(group, topic, {0: 7})
    names, state, offsets = AiokafkaKeeper(lowtide.bootstrap).look(group)
    assert group in names
    assert state == "Empty"
    assert offsets == {0: 7}


def test_offsets_are_deleted_with_their_topic(lowtide: SimpleNamespace, other: Driver, topic: str, group: str) -> None:
    keeper = KafkaPythonKeeper(lowtide.bootstrap)
    keeper.commit(group, topic, {0: 7})
    other.delete_topic(topic)
    until(lambda: keeper.committed(group, topic) == {})


def test_the_topic_of_offsets_is_internal_and_compacted(
    lowtide: SimpleNamespace, other: Driver, topic: str, group: str
) -> None:
    KafkaPythonKeeper(lowtide.bootstrap).commit(group, topic, {0: 7})
    assert other.partition_count("__consumer_offsets") == 50
    assert Aiokafka(lowtide.bootstrap).partition_count("__consumer_offsets") == 50


def test_clients_cannot_write_the_topic_of_offsets(lowtide: SimpleNamespace, topic: str, group: str) -> None:
    """The coordinator loads it at the next start."""
    KafkaPythonKeeper(lowtide.bootstrap).commit(group, topic, {0: 7})
    with pytest.raises(KafkaException, match="_PARTITION|TOPIC_EXCEPTION|Invalid topic"):
        produce_one(lowtide.bootstrap, "__consumer_offsets")


def produce_one(bootstrap: str, topic: str) -> None:
    """Sends one record, and raises its error."""
    refused: list[KafkaError] = []
    producer = Producer({"bootstrap.servers": bootstrap, "broker.address.family": "v4"})
    producer.produce(topic, b"value", partition=0, on_delivery=lambda error, _message: refused.append(error))
    producer.flush(DEADLINE_S)
    if refused[0] is not None:
        raise KafkaException(refused[0])
