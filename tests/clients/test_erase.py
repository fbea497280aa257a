"""Erasing with three brokers: no file of any replica has a deleted record, and others are read as before."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer
from confluent_kafka import TopicPartition as ConfluentPartition

from lowtide.admin import (
    BlockingAdminClient,
    ConfigChange,
    ConfigResource,
    ConfigResourceType,
    ErasedRecords,
    NewTopic,
    TopicPartition,
)
from lowtide.testing.cluster import LowtideCluster

from .command_lines import run
from .replica_files import files_with

RECORDS, START = 500, 237
DELETED, KEPT = b"-this-was-deleted-", b"-this-is-kept-"
ALL = (1, 2, 3)


@pytest.fixture(scope="module")
def cluster() -> Iterator[LowtideCluster]:
    with LowtideCluster(brokers=3, config={"default.replication.factor": "3", "min.insync.replicas": "2"}) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def admin(cluster: LowtideCluster) -> Iterator[BlockingAdminClient]:
    with BlockingAdminClient(cluster.bootstrap) as admin:
        yield admin


def value_of(number: int) -> bytes:
    return (DELETED if number < START else KEPT) + b"%06d-" % number + bytes(range(200))


def produce(producer: Producer, topic: str, first: int, end: int) -> None:
    for number in range(first, end):
        producer.produce(topic, value_of(number), partition=0)
    assert producer.flush(30) == 0


def consumed(cluster: LowtideCluster, topic: str, count: int) -> list[bytes]:
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "unused", "enable.auto.commit": False})
    consumer.assign([ConfluentPartition(topic, 0, OFFSET_BEGINNING)])
    messages = consumer.consume(count, timeout=30)
    consumer.close()
    return [value for message in messages if (value := message.value()) is not None]


@pytest.mark.parametrize("kind", ["none", "gzip", "zstd", "transactional"])
def test_no_file_of_any_replica_has_a_deleted_record(
    cluster: LowtideCluster, admin: BlockingAdminClient, kind: str
) -> None:
    topic = f"erased-{kind}"
    admin.create_topics([NewTopic(name=topic, partitions=1)])
    settings = {
        "bootstrap.servers": cluster.bootstrap,
        "linger.ms": 200,
        "enable.idempotence": True,
        "batch.num.messages": 100,
    }
    settings["compression.type"] = "none" if kind == "transactional" else kind
    if kind == "transactional":
        settings["transactional.id"] = topic
    producer = Producer(settings)
    if kind == "transactional":
        producer.init_transactions(30)
        producer.begin_transaction()
    produce(producer, topic, 0, RECORDS)
    if kind == "transactional":
        producer.commit_transaction(30)
    assert len(files_with(cluster, DELETED, f"{topic}-*")) == len(ALL)
    result = admin.delete_records({TopicPartition(topic, 0): START}, erase=True, timeout=60)[TopicPartition(topic, 0)]
    assert isinstance(result, ErasedRecords), result
    assert (result.low_watermark, sorted(result.erased_by), result.not_erased_by) == (START, list(ALL), {})
    assert files_with(cluster, DELETED, f"{topic}-*") == []
    if kind == "transactional":
        producer.begin_transaction()
    produce(producer, topic, RECORDS, RECORDS + 10)
    if kind == "transactional":
        producer.commit_transaction(30)
    assert consumed(cluster, topic, RECORDS + 10 - START) == [value_of(number) for number in range(START, RECORDS + 10)]


def test_a_replica_that_moved_away_and_back_leaves_no_folder_with_deleted_records(
    cluster: LowtideCluster, admin: BlockingAdminClient
) -> None:
    """The old folder is kept for `file.delete.delay.ms` and not emptied before: the topic is compacted too."""
    topic, key = "away-and-back", TopicPartition("away-and-back", 0)
    configs = {"cleanup.policy": "compact,delete", "file.delete.delay.ms": "600000"}
    admin.create_topics([NewTopic(name=topic, partitions=1, configs=configs)])
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "linger.ms": 200})
    for number in range(RECORDS):
        producer.produce(topic, value_of(number), key=b"%d" % number, partition=0)
    assert producer.flush(30) == 0
    for replicas in ([1, 2], [1, 2, 3]):
        admin.alter_reassignments({key: replicas}, timeout=60)
        deadline = time.monotonic() + 60
        while key in admin.list_reassignments(timeout=60):
            assert time.monotonic() < deadline
            time.sleep(0.1)
    assert any("-delete/" in path for path in files_with(cluster, DELETED, f"{topic}-*"))
    result = admin.delete_records({key: START}, erase=True, timeout=60)[key]
    assert isinstance(result, ErasedRecords), result
    assert (sorted(result.erased_by), result.not_erased_by) == (list(ALL), {})
    assert files_with(cluster, DELETED, f"{topic}-*") == []
    assert files_with(cluster, KEPT, f"{topic}-*")


def test_the_command_names_the_brokers_that_have_not_erased(
    cluster: LowtideCluster, admin: BlockingAdminClient
) -> None:
    topic = "by-command"
    admin.create_topics([NewTopic(name=topic, partitions=1)])
    produce(Producer({"bootstrap.servers": cluster.bootstrap, "linger.ms": 200}), topic, 0, RECORDS)
    words = ("records", "delete", f"{topic}:0", "--offset", START, "--erase", "--yes")
    cluster.stop_broker(3)
    try:
        ran = run(*words, bootstrap=cluster.bootstrap, code=1)
        assert "not erased at broker 3 (1 partition: it is not live)" in ran.stderr
        assert ran.stdout.rstrip().endswith("  1, 2")
        assert len(files_with(cluster, DELETED, f"{topic}-*")) == 1
    finally:
        cluster.start_broker(3)
    deadline = time.monotonic() + 60
    while (told := json.loads(run(*words, "--output", "json", bootstrap=cluster.bootstrap, code=None).stdout))[
        "partitions"
    ][0]["not_erased_by"]:
        assert time.monotonic() < deadline, told
    assert (told["erase"], sorted(told["partitions"][0]["erased_by"])) == (True, list(ALL))
    assert files_with(cluster, DELETED, f"{topic}-*") == []
    assert "exclude each other" in run(*words, "--leader-only", bootstrap=cluster.bootstrap, code=2).stderr


def test_a_topic_that_says_so_erases_by_itself(cluster: LowtideCluster, admin: BlockingAdminClient) -> None:
    topic = "by-itself"
    admin.create_topics([NewTopic(name=topic, partitions=1)])
    resource = ConfigResource(ConfigResourceType.TOPIC, topic)
    assert admin.alter_configs({resource: [ConfigChange("lowtide.delete.erase", "true")]}) == {resource: None}
    produce(Producer({"bootstrap.servers": cluster.bootstrap, "linger.ms": 200}), topic, 0, RECORDS)
    admin.delete_records({TopicPartition(topic, 0): START})
    # A second request finds nothing left to do, or waits for the first.
    result = admin.delete_records({TopicPartition(topic, 0): START}, erase=True, timeout=60)[TopicPartition(topic, 0)]
    assert isinstance(result, ErasedRecords), result
    assert files_with(cluster, DELETED, f"{topic}-*") == []
    assert consumed(cluster, topic, RECORDS - START) == [value_of(number) for number in range(START, RECORDS)]
