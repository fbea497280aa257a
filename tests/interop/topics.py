"""The contents of topics, read as a committed reader does, and the committed offsets of groups."""

from __future__ import annotations

import time
from collections.abc import Iterable

from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from . import load
from .members import DEADLINE_S, until

PARTITIONS = 3
READ_COMMITTED, READ_UNCOMMITTED = IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED


class Topics:
    """The contents of a broker's topics, and the committed offsets of groups."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = {"bootstrap.servers": bootstrap}
        self._admin = AdminClient(self._bootstrap)

    def make(self, *names: str, replicas: int = 1) -> None:
        """Creates topics."""
        for made in self._admin.create_topics([NewTopic(name, PARTITIONS, replicas) for name in names]).values():
            made.result(load.DEADLINE_S)

    def names(self) -> set[str]:
        """Returns the names of all topics."""
        return set(self._admin.list_topics(timeout=load.DEADLINE_S).topics)

    def write(self, topic: str, values: dict[int, list[str]]) -> None:
        """Writes values to partitions."""
        producer = Producer(self._bootstrap)
        for partition, texts in values.items():
            for text in texts:
                producer.produce(topic, text, partition=partition)
        assert producer.flush(load.DEADLINE_S) == 0

    def write_keyed(self, topic: str, rows: Iterable[tuple[str, str]]) -> None:
        """Writes keys and values to the partitions that Java's producer would choose."""
        producer = Producer(self._bootstrap | {"partitioner": "murmur2_random"})
        for key, value in rows:
            producer.produce(topic, value, key=key)
            producer.poll(0)
        assert producer.flush(load.DEADLINE_S) == 0

    def log_starts(self, topic: str) -> list[int]:
        """Returns the log start offset of each partition."""
        return self._offsets(topic, OffsetSpec.earliest())

    def read_committed(self, topic: str) -> list[tuple[str, str]]:
        """Key and value of all committed records, when no transaction is open any more; each partition in order."""
        until(
            lambda: self._ends(topic, READ_COMMITTED) == self._ends(topic, READ_UNCOMMITTED),
            lambda: "a transaction stays open",
        )
        consumer = Consumer(
            self._bootstrap | {"group.id": "none", "enable.partition.eof": True, "isolation.level": "read_committed"}
        )
        consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
        read: list[tuple[str, str]] = []
        at_end: set[int] = set()
        deadline = time.monotonic() + DEADLINE_S
        while len(at_end) < PARTITIONS:
            assert time.monotonic() < deadline, read
            message = consumer.poll(0.5)
            if message is None:
                continue
            if message.error() is None:
                read.append(((message.key() or b"").decode(), message.value().decode()))
            else:
                assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
                at_end.add(message.partition())
        consumer.close()
        return read

    def _ends(self, topic: str, isolation: IsolationLevel) -> list[int]:
        return self._offsets(topic, OffsetSpec.latest(), isolation)

    def _offsets(self, topic: str, spec: OffsetSpec, isolation: IsolationLevel = READ_UNCOMMITTED) -> list[int]:
        """Returns an offset of each partition; asks again while a leader changes.

        Each time with a new client, since librdkafka's keeps the leader epochs that it has seen.
        """
        asked = {TopicPartition(topic, number): spec for number in range(PARTITIONS)}
        deadline = time.monotonic() + load.DEADLINE_S
        while True:
            admin = AdminClient(self._bootstrap)
            answers = admin.list_offsets(asked, isolation_level=isolation).values()
            try:
                return [answer.result(load.DEADLINE_S).offset for answer in answers]
            except KafkaException as error:
                assert time.monotonic() < deadline, error
                time.sleep(0.1)

    def committed(self, group: str) -> dict[tuple[str, int], int]:
        """Returns the offsets of a group."""
        found = self._admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group].result(
            load.DEADLINE_S
        )
        return {(place.topic, place.partition): place.offset for place in found.topic_partitions}
