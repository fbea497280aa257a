"""confluent-kafka: librdkafka's Python binding."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from .driver import DEADLINE_S, OutgoingRecord, OutOfRangeError, ReadRecord, Reset

NO_GROUPS = frozenset({KafkaError._UNSUPPORTED_FEATURE})
"""The binding requires a group.id; without groups librdkafka reports once that it finds no coordinator."""


def received(message: Message) -> ReadRecord:
    """Returns the record in a message that holds no error."""
    offset = message.offset()
    assert offset is not None
    headers = tuple(cast("list[tuple[str, bytes | None]]", message.headers() or []))
    return ReadRecord(offset, message.timestamp()[1], message.key(), message.value(), headers)


class ConfluentReader:
    """A consumer with one assigned partition."""

    def __init__(self, consumer: Consumer, topic: str, partition: int) -> None:
        self._consumer = consumer
        self._topic = topic
        self._partition = partition

    def read(self, count: int) -> list[ReadRecord]:
        records: list[ReadRecord] = []
        deadline = time.monotonic() + DEADLINE_S
        while len(records) < count:
            message = self._consumer.poll(max(0.0, deadline - time.monotonic()))
            if message is None:
                raise TimeoutError(f"{len(records)} of {count} records after {DEADLINE_S} s")
            error = message.error()
            if error is None:
                records.append(received(message))
            elif error.code() == KafkaError._AUTO_OFFSET_RESET:
                raise OutOfRangeError(error.str())
            elif error.code() not in NO_GROUPS:
                raise KafkaException(error)
        return records

    def seek(self, offset: int) -> None:
        self._consumer.seek(TopicPartition(self._topic, self._partition, offset))


class Confluent:
    """The driver of confluent-kafka."""

    name = "confluent-kafka"

    def __init__(self, bootstrap: str) -> None:
        self._settings: dict[str, Any] = {"bootstrap.servers": bootstrap, "broker.address.family": "v4"}

    def produce(
        self,
        topic: str,
        records: Sequence[OutgoingRecord],
        *,
        partition: int = 0,
        codec: str = "none",
        idempotent: bool = False,
    ) -> None:
        faults: list[KafkaError] = []

        def on_delivery(error: KafkaError | None, _message: Message) -> None:
            if error is not None:
                faults.append(error)

        # linger.ms above the deadline: only flush sends, so that everything is in one batch.
        producer = Producer(
            self._settings
            | {
                "acks": "all",
                "linger.ms": 60_000,
                "compression.type": codec,
                "enable.idempotence": idempotent,
                "delivery.timeout.ms": 120_000,
            }
        )
        for record in records:
            producer.produce(
                topic,
                value=record.value,
                key=record.key,
                partition=partition,
                timestamp=record.timestamp_ms or 0,
                headers=list(record.headers),
                on_delivery=on_delivery,
            )
        left = producer.flush(DEADLINE_S)
        assert left == 0, f"{left} of {len(records)} records not acknowledged after {DEADLINE_S} s"
        assert not faults, f"{len(faults)} records refused, the first with {faults[0]}"

    @contextmanager
    def _consumer(self, settings: Mapping[str, Any]) -> Iterator[Consumer]:
        consumer = Consumer(
            self._settings | {"group.id": f"unused-{uuid.uuid4()}", "enable.auto.commit": False} | dict(settings)
        )
        try:
            yield consumer
        finally:
            consumer.close()

    @contextmanager
    def reader(self, topic: str, partition: int, start: int, *, reset: Reset = "error") -> Iterator[ConfluentReader]:
        with self._consumer({"auto.offset.reset": reset, "fetch.wait.max.ms": 100}) as consumer:
            consumer.assign([TopicPartition(topic, partition, start)])
            yield ConfluentReader(consumer, topic, partition)

    def offsets(self, topic: str, partitions: Sequence[int]) -> dict[int, tuple[int, int]]:
        with self._consumer({}) as consumer:
            return {
                p: consumer.get_watermark_offsets(TopicPartition(topic, p), timeout=DEADLINE_S, cached=False)
                for p in partitions
            }

    def offset_for_time(self, topic: str, partition: int, timestamp_ms: int) -> int | None:
        with self._consumer({}) as consumer:
            [found] = consumer.offsets_for_times([TopicPartition(topic, partition, timestamp_ms)], timeout=DEADLINE_S)
        assert found.error is None, found.error
        # librdkafka reports "none" as OFFSET_END.
        return found.offset if found.offset >= 0 else None

    def _admin(self) -> AdminClient:
        return AdminClient(self._settings)

    def create_topic(self, topic: str, partitions: int, configs: Mapping[str, str], *, replicas: int = 1) -> None:
        new = NewTopic(topic, num_partitions=partitions, replication_factor=replicas, config=dict(configs))
        # The futures do not keep their client alive: it must be referenced here until they are done, and below
        # likewise.
        admin = self._admin()
        admin.create_topics([new], request_timeout=DEADLINE_S)[topic].result(DEADLINE_S)

    def delete_topic(self, topic: str) -> None:
        admin = self._admin()
        admin.delete_topics([topic], request_timeout=DEADLINE_S)[topic].result(DEADLINE_S)

    def partition_count(self, topic: str) -> int | None:
        found = self._admin().list_topics(timeout=DEADLINE_S).topics.get(topic)
        return None if found is None else len(found.partitions)

    def delete_records(self, topic: str, offsets: Mapping[int, int]) -> dict[int, int]:
        asked = [TopicPartition(topic, partition, offset) for partition, offset in offsets.items()]
        admin = self._admin()
        futures = admin.delete_records(asked, request_timeout=DEADLINE_S, operation_timeout=DEADLINE_S)
        return {place.partition: future.result(DEADLINE_S).low_watermark for place, future in futures.items()}
