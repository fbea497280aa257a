"""Transactions through librdkafka: committed records once, aborted ones never, no end by fenced producers."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from lowtide.testing.cluster import LowtideCluster

PARTITIONS, WAIT_S = 3, 120


@pytest.fixture(
    scope="module",
    params=[pytest.param(1, id="one broker"), pytest.param(3, id="three brokers", marks=pytest.mark.slow)],
)
def cluster(request: pytest.FixtureRequest) -> Iterator[LowtideCluster]:
    with LowtideCluster(brokers=request.param) as running:
        yield running


def make_topic(cluster: LowtideCluster, name: str) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    admin.create_topics([NewTopic(name, PARTITIONS, replication_factor=1)])[name].result()


def producer(cluster: LowtideCluster, name: str, **settings: object) -> Producer:
    made = Producer({"bootstrap.servers": cluster.bootstrap, "transactional.id": name, "linger.ms": 0, **settings})
    made.init_transactions(WAIT_S)
    return made


def read(cluster: LowtideCluster, topic: str, last: bytes, *, isolation: str = "read_committed") -> list[bytes]:
    """Returns all readable records up to the record `last` of each partition."""
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": "g",
            "auto.offset.reset": "earliest",
            "isolation.level": isolation,
        }
    )
    consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
    values: list[bytes] = []
    deadline = time.monotonic() + WAIT_S
    while values.count(last) < PARTITIONS:
        assert time.monotonic() < deadline, values
        message = consumer.poll(0.5)
        if message is not None:
            assert message.error() is None, message.error()
            values.append(message.value())
    consumer.close()
    return values


def finish(writer: Producer, topic: str) -> None:
    writer.begin_transaction()
    for number in range(PARTITIONS):
        writer.produce(topic, b"last", partition=number)
    writer.commit_transaction(WAIT_S)


def test_committed_records_are_read_once_and_aborted_ones_never(cluster: LowtideCluster) -> None:
    make_topic(cluster, "ends")
    writer = producer(cluster, "ends")
    for number in range(30):
        writer.begin_transaction()
        for partition in range(PARTITIONS):
            writer.produce("ends", f"{number}".encode(), partition=partition)
        if number % 3:
            writer.commit_transaction(WAIT_S)
        else:
            writer.flush(WAIT_S)
            writer.abort_transaction(WAIT_S)
    finish(writer, "ends")
    committed = [f"{number}".encode() for number in range(30) if number % 3]
    assert sorted(read(cluster, "ends", b"last")) == sorted(([*committed, b"last"]) * PARTITIONS)
    everything = read(cluster, "ends", b"last", isolation="read_uncommitted")
    assert set(everything) - {b"last"} >= {f"{number}".encode() for number in range(30)}


def test_a_replaced_producer_ends_nothing(cluster: LowtideCluster) -> None:
    make_topic(cluster, "fenced")
    first = producer(cluster, "fenced")
    first.begin_transaction()
    first.produce("fenced", b"of the first", partition=0)
    first.flush(WAIT_S)
    second = producer(cluster, "fenced")
    with pytest.raises(KafkaException) as refused:
        first.commit_transaction(WAIT_S)
    assert refused.value.args[0].fatal()
    finish(second, "fenced")
    assert read(cluster, "fenced", b"last") == [b"last"] * PARTITIONS


def test_a_transaction_that_takes_too_long_is_aborted(cluster: LowtideCluster) -> None:
    make_topic(cluster, "late")
    late = producer(cluster, "late", **{"transaction.timeout.ms": 1000, "socket.timeout.ms": 1000})
    late.begin_transaction()
    late.produce("late", b"too late", partition=0)
    late.flush(WAIT_S)
    finish(producer(cluster, "in time"), "late")
    assert read(cluster, "late", b"last") == [b"last"] * PARTITIONS
    with pytest.raises(KafkaException):
        late.commit_transaction(WAIT_S)
