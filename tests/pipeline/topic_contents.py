"""The records of a topic, as another client reads them, and its batches on the disk."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from confluent_kafka import Consumer, TopicPartition

from lowtide.protocol.records import BatchHeader, iterate_batches

LIMIT_S = 120.0


class StoredRecord(NamedTuple):
    """One record."""

    partition: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]] | None


def records(bootstrap: str, topic: str) -> list[StoredRecord]:
    """Returns all records, by partition, in order."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "test", "enable.auto.commit": False, "auto.offset.reset": "error"}
    )
    try:
        partitions = sorted(consumer.list_topics(topic, timeout=LIMIT_S).topics[topic].partitions)
        bounds = {
            partition: consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=LIMIT_S, cached=False)
            for partition in partitions
        }
        consumer.assign(
            [TopicPartition(topic, partition, start) for partition, (start, end) in bounds.items() if start < end]
        )
        left = sum(end - start for start, end in bounds.values())
        found: list[StoredRecord] = []
        deadline = time.monotonic() + LIMIT_S
        while len(found) < left:
            assert time.monotonic() < deadline, f"{len(found)} of {left} records"
            for message in consumer.consume(1000, timeout=1.0):
                assert message.error() is None, message.error()
                found.append(StoredRecord(message.partition() or 0, message.key(), message.value(), message.headers()))
        return sorted(found, key=lambda record: record.partition)
    finally:
        consumer.close()


def batches(directory: str, topic: str) -> Iterator[BatchHeader]:
    """The batches of all partitions."""
    for path in sorted(Path(directory).rglob(f"{topic}-[0-9]*/*.log")):
        for _, header in iterate_batches(path.read_bytes()):
            yield header
