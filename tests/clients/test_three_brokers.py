"""Clients against three brokers, one of which stops or fails and returns: no acknowledged record is lost or duplicated.

Every partition has three replicas, two of which must be in sync.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka.admin import AdminClient

from lowtide import LowtideCluster

from .conftest import CLIENTS, LIBRARIES
from .driver import Driver, OutgoingRecord, until
from .driver_confluent import Confluent
from .open_clients import OPEN_CONSUMERS, OPEN_PRODUCERS, kcat_value

PARTITIONS = range(3)
SESSION_MS = 2000
"""How long to wait for a failed broker; it is short to keep the tests short."""


@pytest.fixture(scope="module")
def three() -> Iterator[LowtideCluster]:
    config = {
        "min.insync.replicas": "2",
        "broker.session.timeout.ms": str(SESSION_MS),
        "broker.heartbeat.interval.ms": "200",
        "auto.create.topics.enable": "false",
    }
    with LowtideCluster(brokers=3, config=config) as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def _all_in_sync(three: LowtideCluster) -> None:
    until(lambda: all_in_sync(three))


def all_in_sync(cluster: LowtideCluster) -> bool:
    topics = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0}).list_topics(timeout=60).topics
    return all(
        len(row.isrs) == len(row.replicas) and row.leader >= 0
        for topic in topics.values()
        for row in topic.partitions.values()
    )


def leader(cluster: LowtideCluster, topic: str, partition: int = 0) -> int:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    return int(admin.list_topics(topic, timeout=60).topics[topic].partitions[partition].leader)


def new_topic(cluster: LowtideCluster, name: str) -> Driver:
    """A topic of three partitions, each with three replicas; and a client for steps that a test does not check."""
    other = Confluent(cluster.bootstrap)
    other.create_topic(name, len(PARTITIONS), {}, replicas=3)
    until(lambda: other.partition_count(name) == len(PARTITIONS) and all_in_sync(cluster))
    return other


def values(client: Driver, topic: str, partition: int, start: int, count: int) -> list[bytes | None]:
    with client.reader(topic, partition, start) as reader:
        return [record.value for record in reader.read(count)]


@pytest.mark.parametrize("name", LIBRARIES)
def test_a_client_creates_topics_with_replicas_and_deletes_records_while_a_broker_is_down(
    three: LowtideCluster, name: str
) -> None:
    client = CLIENTS[name](three.bootstrap)
    topic = f"replicated-{name}"
    client.create_topic(topic, len(PARTITIONS), {}, replicas=3)
    until(lambda: client.partition_count(topic) == len(PARTITIONS) and all_in_sync(three))
    records = [OutgoingRecord(b"k", b"%d" % number) for number in range(6)]
    client.produce(topic, records)
    away = leader(three, topic)
    three.stop_broker(away)
    try:
        assert client.delete_records(topic, {0: 2}) == {0: 2}
        assert client.offsets(topic, [0]) == {0: (2, 6)}
        client.produce(topic, records[:1], idempotent=True)
    finally:
        three.start_broker(away)
    until(lambda: all_in_sync(three))
    assert client.delete_records(topic, {0: 3}) == {0: 3}
    assert client.offsets(topic, [0]) == {0: (3, 7)}
    assert values(client, topic, 0, 3, 4) == [b"3", b"4", b"5", b"0"]


@pytest.mark.parametrize("end", [pytest.param("stop", marks=pytest.mark.slow), "kill"])
@pytest.mark.parametrize("name", OPEN_PRODUCERS)
def test_an_idempotent_producer_writes_each_record_once_while_its_leader_stops_and_returns(
    three: LowtideCluster, name: str, end: str
) -> None:
    if name == "kcat" and shutil.which("kcat") is None:
        pytest.skip("kcat is not installed")
    topic = f"once-{name}-{end}"
    other = new_topic(three, topic)
    away = leader(three, topic)
    ends: dict[str, Callable[[int], None]] = {"stop": three.stop_broker, "kill": three.kill_broker}

    def go_and_return() -> None:
        ends[end](away)
        until(lambda: leader(three, topic) not in {away, -1})
        three.start_broker(away)

    sent = 20
    with OPEN_PRODUCERS[name](three.bootstrap, topic, idempotent=True) as producer:
        for number in range(sent):
            producer.send(OutgoingRecord(b"k", kcat_value(number)), 0)
        producer.flush()
        change = threading.Thread(target=go_and_return)
        change.start()
        while change.is_alive():
            for number in range(sent, sent + 10):
                producer.send(OutgoingRecord(b"k", kcat_value(number)), 0)
            sent += 10
            producer.flush()
        change.join()
    assert other.offsets(topic, [0]) == {0: (0, sent)}
    assert values(other, topic, 0, 0, sent) == [kcat_value(number) for number in range(sent)]


@pytest.mark.parametrize("name", OPEN_CONSUMERS)
def test_a_consumer_continues_when_its_leader_changes(three: LowtideCluster, name: str) -> None:
    topic = f"read-{name}"
    other = new_topic(three, topic)
    with OPEN_CONSUMERS[name](three.bootstrap, topic, {0: 0}) as consumer:
        for first in (0, 3, 6):
            other.produce(topic, [OutgoingRecord(b"k", b"%d" % number) for number in range(first, first + 3)])
            assert [record.value for record in consumer.read(3)[0]] == [
                b"%d" % number for number in range(first, first + 3)
            ]
            away = leader(three, topic)
            three.stop_broker(away)
            until(lambda away=away: leader(three, topic) not in {away, -1})
            three.start_broker(away)
            until(lambda: all_in_sync(three))
