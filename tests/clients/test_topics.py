"""Clients create and delete topics, if they can; all clients see the changes."""

from __future__ import annotations

import aiokafka.errors
import confluent_kafka
import kafka.errors
import pytest

from .driver import Driver, OutgoingRecord, until

ALREADY_EXISTS = (
    confluent_kafka.KafkaException,
    kafka.errors.TopicAlreadyExistsError,
    aiokafka.errors.TopicAlreadyExistsError,
)


def test_a_created_topic_is_described_with_its_partitions(library: Driver, client: Driver, lowtide_topic: str) -> None:
    assert client.partition_count(lowtide_topic) is None
    library.create_topic(lowtide_topic, 5, {"retention.ms": "3600000"})
    until(lambda: client.partition_count(lowtide_topic) == 5)


def test_a_name_is_unique(library: Driver, lowtide_topic: str) -> None:
    library.create_topic(lowtide_topic, 1, {})
    with pytest.raises(ALREADY_EXISTS, match=r"(?i)already.?exists|TopicExists|TopicAlreadyExists"):
        library.create_topic(lowtide_topic, 1, {})


def test_a_deleted_topic_is_gone_and_its_name_starts_empty(library: Driver, client: Driver, topic: str) -> None:
    """A topic that is re-created under an old name starts at offset 0 without records."""
    client.produce(topic, [OutgoingRecord(b"k", b"old")] * 3)
    library.delete_topic(topic)
    until(lambda: client.partition_count(topic) is None)
    library.create_topic(topic, 1, {})
    until(lambda: client.partition_count(topic) == 1)
    assert client.offsets(topic, [0]) == {0: (0, 0)}
    client.produce(topic, [OutgoingRecord(b"k", b"new")])
    with client.reader(topic, 0, 0) as reader:
        assert [(record.offset, record.value) for record in reader.read(1)] == [(0, b"new")]
