"""The pipeline on Apache Kafka: keys get the same partitions as with other clients, and workers log in."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from typing import Any

import numpy as np
import pytest
from confluent_kafka import Consumer
from confluent_kafka import Producer as OtherProducer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from lowtide.admin.errors import AuthenticationFailedError
from lowtide.admin.settings import ClientSettings
from lowtide.pipeline.cluster import BlockingCluster
from lowtide.pipeline.fetching import RangeReader
from lowtide.pipeline.partitioner import partitions_of_keys
from lowtide.pipeline.producer import Producer
from lowtide.pipeline.producer_settings import ProducerSettings
from lowtide.pipeline.ranges import ReadRange
from lowtide.pipeline.tasks import FetchSettings, PlannedRange
from lowtide.protocol.batch_building import build_batch
from lowtide.protocol.types import TopicPartition

from .kafka import Kafka
from .secured_kafka import SecuredKafka

pytestmark = pytest.mark.interop

LIMIT_S = 120.0
PARTITIONS = 3
RECORDS = 30_000


def read(address: str, topic: str, count: int) -> dict[int, list[tuple[bytes | None, bytes | None]]]:
    """Returns the first `count` records, by partition, in order, and no more."""
    found: Any = defaultdict(list)
    settings = {
        "bootstrap.servers": address,
        "group.id": "test",
        "auto.offset.reset": "earliest",
        "enable.partition.eof": False,
    }
    consumer = Consumer(settings)
    try:
        consumer.subscribe([topic])
        deadline = time.monotonic() + LIMIT_S
        while sum(map(len, found.values())) < count or time.monotonic() < deadline - LIMIT_S + 1:
            assert time.monotonic() < deadline, {partition: len(records) for partition, records in found.items()}
            for message in consumer.consume(1000, timeout=0.5):
                assert message.error() is None, message.error()
                found[message.partition()].append((message.key(), message.value()))
        assert not consumer.consume(1, timeout=2)
        return found
    finally:
        consumer.close()


def test_everything_is_there_once_and_in_order_though_kafka_stops_meanwhile(kafka: Kafka):
    """A stopping leader answers NOT_LEADER_OR_FOLLOWER also for batches that it has appended, and keeps only the last
    batch.

    Records are new: at its start Kafka drops a producer whose last record is old.
    """
    kafka.start()
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    admin.create_topics([NewTopic("numbers", num_partitions=PARTITIONS, replication_factor=1)])["numbers"].result(
        LIMIT_S
    )
    writing = Producer(ProducerSettings.of({"bootstrap.servers": kafka.bootstrap, "buffer.memory": "300000"}))
    failed: list[Exception] = []

    def run() -> None:
        try:
            writing.learn_topic("numbers")
            for number in range(0, RECORDS, 10):
                now_ms = int(time.time() * 1000)
                rows = [(now_ms, None, b"%d %b" % (value, b"x" * 500), ()) for value in range(number, number + 10)]
                writing.add(TopicPartition("numbers", number // 10 % PARTITIONS), bytearray(build_batch(rows)), 10)
            writing.flush()
        except Exception as error:
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    deadline = time.monotonic() + LIMIT_S
    while writing.acknowledged_records < RECORDS // 5 and thread.is_alive():
        assert time.monotonic() < deadline
        time.sleep(0.001)
    kafka.stop()
    kafka.start()
    thread.join(2 * LIMIT_S)
    assert not thread.is_alive()
    assert failed == []
    writing.close()
    found = read(kafka.bootstrap, "numbers", RECORDS)
    for partition in range(PARTITIONS):
        numbers = [int((value or b"").split()[0]) for _, value in found[partition]]
        assert numbers == [value for value in range(RECORDS) if value // 10 % PARTITIONS == partition]


def test_keys_get_the_partitions_of_other_clients(kafka: Kafka):
    kafka.start()
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    admin.create_topics([NewTopic("keys", num_partitions=PARTITIONS, replication_factor=1)])["keys"].result(LIMIT_S)
    other = OtherProducer({"bootstrap.servers": kafka.bootstrap, "partitioner": "murmur2_random"})
    keys = [b"key-%d" % number * (number % 4 + 1) for number in range(200)]
    for key in keys:
        other.produce("keys", b"", key)
    assert other.flush(LIMIT_S) == 0
    for partition, records in read(kafka.bootstrap, "keys", len(keys)).items():
        for key, _ in records:
            assert key is not None
            hashed = partitions_of_keys(np.array([0, len(key)], np.int32), np.frombuffer(key, np.uint8), PARTITIONS)
            assert int(hashed[0]) == partition


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
@pytest.mark.parametrize("protocol", ["SASL_PLAINTEXT", "SASL_SSL"])
def test_workers_log_in_and_write_and_read(secured: SecuredKafka, lowtide_topic: str, protocol: str, mechanism: str):
    """Several requests are under way at once, and answers are larger than a TLS record."""
    settings = secured.settings(protocol, mechanism)
    place = TopicPartition(lowtide_topic, 0)
    batches, rows = 40, 100
    writing = Producer(ProducerSettings.of(settings))
    writing.learn_topic(lowtide_topic)
    for number in range(batches):
        now_ms = int(time.time() * 1000)
        values = [
            (now_ms, None, b"%d %b" % (value, b"x" * 1000), ()) for value in range(number * rows, (number + 1) * rows)
        ]
        writing.add(place, bytearray(build_batch(values)), rows)
    writing.flush()
    writing.close()
    cluster = BlockingCluster(ClientSettings.of(settings))
    planned = PlannedRange(ReadRange(place, 0, batches * rows))
    found = sum(
        columns.row_count for columns in RangeReader(cluster, FetchSettings(fetch_bytes=1_000_000), planned).columns()
    )
    cluster.close()
    assert found == writing.acknowledged_records == batches * rows
    stranger = Producer(ProducerSettings.of(secured.settings(protocol, mechanism, "wrong")))
    with pytest.raises(AuthenticationFailedError, match="alice cannot log in"):
        stranger.learn_topic(lowtide_topic)
