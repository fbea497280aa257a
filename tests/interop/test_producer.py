"""The pipeline sends a key to the partition of Apache Kafka to which other clients send it."""

from __future__ import annotations

import time
from collections import defaultdict

import numpy as np
import pytest
from confluent_kafka import Consumer
from confluent_kafka import Producer as OtherProducer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from lowtide.pipeline.partitioner import partitions_of_keys

from .kafka import Kafka

pytestmark = pytest.mark.interop

LIMIT_S = 120.0
PARTITIONS = 3


def read(address: str, topic: str, count: int) -> dict[int, list[tuple[bytes | None, bytes | None]]]:
    """The first `count` records, by partition in their order, and none more."""
    found = defaultdict(list)
    settings = {"bootstrap.servers": address, "group.id": "test", "auto.offset.reset": "earliest", "enable.partition.eof": False}
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


def test_keys_go_where_other_clients_send_them(kafka: Kafka):
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
