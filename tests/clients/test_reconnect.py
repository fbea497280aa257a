"""Clients that stay open during a restart continue: no record is lost, duplicated or reordered."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from lowtide import LowtideCluster

from .driver import TO_HIGH_WATERMARK, OutgoingRecord, until
from .driver_confluent import Confluent
from .open_clients import OPEN_CONSUMERS, OPEN_PRODUCERS, kcat_value

TOPIC = "restarted"


def mostly_slow(names: Iterable[str], name: str) -> list[Any]:
    """Returns the names as parameters: `make test` runs one of them, each test that of another client."""
    return [each if each == name else pytest.param(each, marks=pytest.mark.slow) for each in names]


@pytest.fixture
def cluster() -> Iterator[LowtideCluster]:
    """A separate broker, which may stop, with a topic of one empty partition."""
    with LowtideCluster() as cluster:
        other = Confluent(cluster.bootstrap)
        other.create_topic(TOPIC, 1, {})
        until(lambda: other.partition_count(TOPIC) == 1)
        yield cluster


def numbered(first: int, count: int) -> list[OutgoingRecord]:
    return [OutgoingRecord(b"k", kcat_value(n)) for n in range(first, first + count)]


def values(cluster: LowtideCluster, count: int) -> list[bytes | None]:
    with Confluent(cluster.bootstrap).reader(TOPIC, 0, 0) as reader:
        return [record.value for record in reader.read(count)]


@pytest.mark.parametrize("idempotent", [pytest.param(False, marks=pytest.mark.slow), True], ids=["plain", "idempotent"])
@pytest.mark.parametrize("name", mostly_slow(OPEN_PRODUCERS, "confluent-kafka"))
def test_a_producer_that_was_open_before_the_restart_continues_after_it(
    cluster: LowtideCluster, name: str, idempotent: bool
) -> None:
    with OPEN_PRODUCERS[name](cluster.bootstrap, TOPIC, idempotent=idempotent) as producer:
        for first in (0, 3):
            if first:
                cluster.restart()
            for record in numbered(first, 3):
                producer.send(record, 0)
            assert producer.flush() == [first, first + 1, first + 2]
    assert Confluent(cluster.bootstrap).offsets(TOPIC, [0]) == {0: (0, 6)}
    assert values(cluster, 6) == [record.value for record in numbered(0, 6)]


@pytest.mark.parametrize("name", mostly_slow(OPEN_PRODUCERS, "kafka-python"))
def test_an_idempotent_producer_that_sends_during_the_restart_writes_each_record_once(
    cluster: LowtideCluster, name: str
) -> None:
    """Records are sent all the time: before and during the stop, while nothing listens, and after the start."""
    sent = 0
    restart = threading.Thread(target=cluster.restart)
    with OPEN_PRODUCERS[name](cluster.bootstrap, TOPIC, idempotent=True) as producer:
        for record in numbered(0, 20):
            producer.send(record, 0)
        producer.flush()
        sent = 20
        restart.start()
        while restart.is_alive():
            for record in numbered(sent, 10):
                producer.send(record, 0)
            sent += 10
            producer.flush()
        for record in numbered(sent, 5):
            producer.send(record, 0)
        sent += 5
        producer.flush()
    restart.join()
    assert Confluent(cluster.bootstrap).offsets(TOPIC, [0]) == {0: (0, sent)}
    assert values(cluster, sent) == [record.value for record in numbered(0, sent)]


@pytest.mark.parametrize("name", mostly_slow(OPEN_PRODUCERS, "kcat"))
def test_an_idempotent_producer_whose_records_were_deleted_continues(cluster: LowtideCluster, name: str) -> None:
    """A partition without records still has its producers' state, before and after the restart."""
    other = Confluent(cluster.bootstrap)
    with OPEN_PRODUCERS[name](cluster.bootstrap, TOPIC, idempotent=True) as producer:
        for first in (0, 3, 6):
            if first:
                assert other.delete_records(TOPIC, {0: TO_HIGH_WATERMARK}) == {0: first}
            if first == 6:
                cluster.restart()
            for record in numbered(first, 3):
                producer.send(record, 0)
            assert producer.flush() == [first, first + 1, first + 2]
    assert other.offsets(TOPIC, [0]) == {0: (6, 9)}


@pytest.mark.parametrize("name", mostly_slow(OPEN_CONSUMERS, "aiokafka"))
def test_a_consumer_that_was_open_before_the_restart_continues_after_it(cluster: LowtideCluster, name: str) -> None:
    """The fetch session was lost with the broker."""
    other = Confluent(cluster.bootstrap)
    with OPEN_CONSUMERS[name](cluster.bootstrap, TOPIC, {0: 0}) as consumer:
        for first in (0, 3):
            if first:
                cluster.restart()
            other.produce(TOPIC, numbered(first, 3))
            records = consumer.read(3)[0]
            assert [(record.offset, record.value) for record in records] == [
                (n, kcat_value(n)) for n in range(first, first + 3)
            ]
