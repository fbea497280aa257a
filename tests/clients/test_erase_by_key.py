"""Erasing one person with three brokers: no file has their records, and clients read all others across the gaps."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka import TopicPartition as AiokafkaPartition
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Producer
from confluent_kafka import TopicPartition as ConfluentPartition

from lowtide.admin import BlockingAdminClient, NewTopic, OffsetSpec, PartitionErasure, TopicPartition
from lowtide.testing.cluster import LowtideCluster

from .command_lines import run
from .driver_kafka_python import KafkaConsumer
from .driver_kafka_python import TopicPartition as PythonPartition
from .replica_files import files_with

PERSON, OTHER, PEOPLE = b"person-4711", b"person-%d", 50
RECORDS, LIMIT_S = 5_000, 60.0
ALL = (1, 2, 3)


class PeopleRead(NamedTuple):
    """What a consumer got."""

    records: list[tuple[int, bytes]]
    """Offsets and keys."""
    position: int


@pytest.fixture(scope="module")
def cluster() -> Iterator[LowtideCluster]:
    config = {"default.replication.factor": "3", "min.insync.replicas": "2", "log.segment.bytes": "1048576"}
    with LowtideCluster(brokers=3, config=config) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def admin(cluster: LowtideCluster) -> Iterator[BlockingAdminClient]:
    with BlockingAdminClient(cluster.bootstrap) as admin:
        yield admin


def key_of(number: int) -> bytes:
    return PERSON if number % 97 == 5 else OTHER % (number % PEOPLE)


def produce(producer: Producer, topic: str, first: int = 0, end: int = RECORDS) -> None:
    for number in range(first, end):
        key = key_of(number)
        value = b"of %s: %06d " % (key, number) + bytes(range(256))
        producer.produce(topic, value, key, partition=0, headers=[("who", key)])
    assert producer.flush(30) == 0


def producer_of(cluster: LowtideCluster, **settings: object) -> Producer:
    common = {"linger.ms": 50, "batch.num.messages": 100, "enable.idempotence": True, "compression.type": "zstd"}
    return Producer({"bootstrap.servers": cluster.bootstrap, **common, **settings})


def live(first: int = 0, end: int = RECORDS) -> list[bytes]:
    """The keys of records that stay."""
    return [key for number in range(first, end) if (key := key_of(number)) != PERSON]


def read_by_confluent(bootstrap: str, topic: str, isolation: str, _end: int) -> PeopleRead:
    settings = {"group.id": "unused", "enable.auto.commit": False, "enable.partition.eof": True}
    consumer = Consumer({"bootstrap.servers": bootstrap, "isolation.level": isolation, **settings})
    consumer.assign([ConfluentPartition(topic, 0, OFFSET_BEGINNING)])
    records: list[tuple[int, bytes]] = []
    with closing(consumer):
        while True:
            message = consumer.poll(LIMIT_S)
            assert message is not None
            error = message.error()
            if error is not None:
                assert error.code() == KafkaError._PARTITION_EOF
                return PeopleRead(records, message.offset() or 0)
            records.append((message.offset() or 0, message.key() or b""))


def read_by_kafka_python(bootstrap: str, topic: str, isolation: str, end: int) -> PeopleRead:
    place, deadline = PythonPartition(topic, 0), time.monotonic() + LIMIT_S
    settings = {"group_id": None, "enable_auto_commit": False, "isolation_level": isolation}
    with closing(KafkaConsumer(bootstrap_servers=bootstrap, **settings)) as consumer:
        consumer.assign([place])
        consumer.seek_to_beginning(place)
        records: list[tuple[int, bytes]] = []
        while consumer.position(place) < end:
            assert time.monotonic() < deadline, consumer.position(place)
            polled = consumer.poll(timeout_ms=200).get(place, ())
            records.extend((each.offset, each.key) for each in polled)
        return PeopleRead(records, consumer.position(place))


def read_by_aiokafka(bootstrap: str, topic: str, isolation: str, end: int) -> PeopleRead:
    async def read() -> PeopleRead:
        place, records = AiokafkaPartition(topic, 0), list[tuple[int, bytes]]()
        consumer = AIOKafkaConsumer(
            bootstrap_servers=bootstrap, group_id=None, enable_auto_commit=False, isolation_level=isolation
        )
        await consumer.start()
        try:
            consumer.assign([place])
            await consumer.seek_to_beginning(place)
            async with asyncio.timeout(LIMIT_S):
                while await consumer.position(place) < end:
                    polled = await consumer.getmany(place, timeout_ms=200)
                    records.extend((each.offset, each.key) for each in polled.get(place, ()))
            return PeopleRead(records, await consumer.position(place))
        finally:
            await consumer.stop()

    return asyncio.run(read())


READERS: dict[str, Callable[[str, str, str, int], PeopleRead]] = {
    "confluent": read_by_confluent,
    "kafka-python": read_by_kafka_python,
    "aiokafka": read_by_aiokafka,
}


def end_of(admin: BlockingAdminClient, topic: str) -> int:
    key = TopicPartition(topic, 0)
    found = admin.list_offsets({key: OffsetSpec.LATEST})[key]
    assert not isinstance(found, Exception), found
    return found.offset


def erased(admin: BlockingAdminClient, topic: str, **selector: Any) -> PartitionErasure:
    key = TopicPartition(topic, 0)
    result = admin.erase_records([key], timeout=LIMIT_S, **(selector or {"keys": [PERSON]}))[key]
    assert isinstance(result, PartitionErasure), result
    return result


def check_all_read(cluster: LowtideCluster, admin: BlockingAdminClient, topic: str, keys: list[bytes]) -> None:
    end = end_of(admin, topic)
    for isolation in ("read_uncommitted", "read_committed"):
        for name, read in READERS.items():
            found = read(cluster.bootstrap, topic, isolation, end)
            assert [key for _, key in found.records] == keys, (name, isolation)
            assert found.position == end, (name, isolation)
            offsets = [offset for offset, _ in found.records]
            assert offsets == sorted(set(offsets)), (name, isolation)


@pytest.mark.parametrize("codec", [pytest.param("none", marks=pytest.mark.slow), "zstd"])
def test_one_person_is_gone_and_all_others_are_read(
    cluster: LowtideCluster, admin: BlockingAdminClient, codec: str
) -> None:
    """The person's records are gone, all others are read once, and an idempotent producer continues."""
    topic = f"people-{codec}"
    admin.create_topics([NewTopic(name=topic, partitions=1)])
    producer = producer_of(cluster, **{"compression.type": codec})
    produce(producer, topic)
    expected = sum(key_of(number) == PERSON for number in range(RECORDS))
    assert {Path(each).suffix for each in files_with(cluster, PERSON)} >= {".log"}
    result = erased(admin, topic)
    assert (result.count, result.searched_to) == (expected, RECORDS)
    assert (result.erased_by, result.not_erased_by) == (ALL, {})
    assert result.erasures_end > RECORDS
    assert files_with(cluster, PERSON, f"{topic}-*") == []
    check_all_read(cluster, admin, topic, live())
    for _ in range(2):  # Also with a broker that has read it all from its files.
        produce(producer, topic, 0, 5)
    check_all_read(cluster, admin, topic, live() + live(0, 5) * 2)
    again = erased(admin, topic, keys=[PERSON], erasure_id=result.erasure_id)
    assert again.erasure_id == result.erasure_id
    for each in (again, erased(admin, topic)):
        assert (each.erased_by, each.not_erased_by) == (ALL, {})
    assert erased(admin, topic, dry_run=True, keys=[PERSON]).count == 0
    assert files_with(cluster, PERSON) == []


@pytest.mark.parametrize("kind", [pytest.param("header", marks=pytest.mark.slow), "offsets"])
def test_records_with_a_header_or_at_offsets_are_gone(
    cluster: LowtideCluster, admin: BlockingAdminClient, kind: str
) -> None:
    """Protects a person whose records have other keys."""
    topic, key = f"people-by-{kind}", TopicPartition(f"people-by-{kind}", 0)
    admin.create_topics([NewTopic(name=topic, partitions=1)])
    produce(producer_of(cluster), topic)
    offsets = [number for number in range(RECORDS) if key_of(number) == PERSON]
    selectors: dict[str, dict[str, Any]] = {
        "header": {"header": ("who", PERSON)},
        "offsets": {"offsets": {key: [(offset, offset) for offset in offsets]}},
    }
    assert erased(admin, topic, dry_run=True, **selectors[kind]).count == len(offsets)
    assert files_with(cluster, PERSON, f"{topic}-*")
    result = erased(admin, topic, **selectors[kind])
    assert (result.count, result.erased_by, result.not_erased_by) == (len(offsets), ALL, {})
    assert files_with(cluster, PERSON, f"{topic}-*") == []
    check_all_read(cluster, admin, topic, live())


@pytest.mark.parametrize("end", ["commit", "abort", "open"])
def test_records_of_a_transaction_are_gone_and_it_goes_on(
    cluster: LowtideCluster, admin: BlockingAdminClient, end: str
) -> None:
    """Protects a person whose records no consumer gets, and a producer in the middle of its transaction."""
    topic = f"people-{end}"
    admin.create_topics([NewTopic(name=topic, partitions=1)])
    producer = producer_of(cluster, **{"transactional.id": topic})
    producer.init_transactions(30)
    producer.begin_transaction()
    produce(producer, topic, 0, 300)
    if end == "commit":
        producer.commit_transaction(30)
    elif end == "abort":
        producer.abort_transaction(30)
    result = erased(admin, topic)
    assert (result.erased_by, result.not_erased_by) == (ALL, {})
    assert files_with(cluster, PERSON, f"{topic}-*") == []
    if end != "open":
        producer.begin_transaction()
    produce(producer, topic, 0, 5)
    producer.commit_transaction(30)
    keys = live(0, 5) if end == "abort" else live(0, 300) + live(0, 5)
    found = read_by_confluent(cluster.bootstrap, topic, "read_committed", 0)
    assert [key for _, key in found.records] == keys
    assert found.position == end_of(admin, topic)


def test_a_broker_that_was_away_is_named_and_clean_when_it_is_back(
    cluster: LowtideCluster, admin: BlockingAdminClient
) -> None:
    """Protects a person whose records are still on a broker that nobody asked."""
    topic, erasure_id = "people-away", UUID(int=4711)
    admin.create_topics([NewTopic(name=topic, partitions=1)])
    produce(producer_of(cluster), topic)
    words = ("records", "erase", topic, "--key", PERSON.decode(), "--yes", "--erasure-id", erasure_id)
    cluster.stop_broker(3)
    try:
        ran = run(*words, bootstrap=cluster.bootstrap, code=1)
        assert "Not erased yet at broker 3 (1 partition: it is not live)" in ran.stderr
        assert PERSON.decode() not in ran.stdout + ran.stderr
        assert {Path(each).parent.parent.name for each in files_with(cluster, PERSON, f"{topic}-*")} == {
            Path(files_with(cluster, PERSON, f"{topic}-*")[0]).parent.parent.name
        }
    finally:
        cluster.start_broker(3)
    deadline = time.monotonic() + LIMIT_S
    while (told := json.loads(run(*words, "--output", "json", bootstrap=cluster.bootstrap, code=None).stdout))[
        "partitions"
    ][0]["not_erased_by"]:
        assert time.monotonic() < deadline, told
    assert (told["erasure_id"], sorted(told["partitions"][0]["erased_by"])) == (str(erasure_id), list(ALL))
    assert files_with(cluster, PERSON, f"{topic}-*") == []
    check_all_read(cluster, admin, topic, live())
