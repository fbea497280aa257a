"""Records for both brokers, by confluent-kafka: every codec, several segments, part of them deleted."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any, NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, ConfigSource
from confluent_kafka.cimpl import NewTopic

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
DEADLINE_S = 30.0
BASE_TIME_MS = 1_700_000_000_000
PER_CODEC = 500
VALUE_BYTES = 1200
"""5 codecs * 500 records * 1.2 KB of text that compresses to half: more than one segment of 1 MiB."""

COUNT = PER_CODEC * len(CODECS)


class Entry(NamedTuple):
    """A record that was written or read."""

    offset: int
    timestamp_ms: int
    key: bytes
    value: bytes


def settings(bootstrap: str, **more: Any) -> dict[str, Any]:
    return {"bootstrap.servers": bootstrap, "broker.address.family": "v4", "log_level": 0} | more


def create_topic(bootstrap: str, topic: str, partitions: int = 1, configs: dict[str, str] | None = None) -> None:
    admin = AdminClient(settings(bootstrap))
    admin.create_topics([NewTopic(topic, num_partitions=partitions, replication_factor=1, config=configs or {})])[
        topic
    ].result(DEADLINE_S)


def configs_set(bootstrap: str, topic: str) -> dict[str, str | None]:
    """Returns the configuration of the topic itself."""
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    admin = AdminClient(settings(bootstrap))
    found = admin.describe_configs([resource])[resource].result(DEADLINE_S)
    return {
        name: entry.value for name, entry in found.items() if entry.source == ConfigSource.DYNAMIC_TOPIC_CONFIG.value
    }


def produce(
    bootstrap: str, topic: str, *, partition: int = 0, first_offset: int = 0, codecs: Sequence[str] = CODECS
) -> list[Entry]:
    """Writes `PER_CODEC` records with each codec, idempotent, one record a second, and returns them."""
    random_letters = random.Random(first_offset).choices
    written: list[Entry] = []
    for codec in codecs:
        faults: list[KafkaError] = []
        producer = Producer(
            settings(
                bootstrap,
                **{"enable.idempotence": True, "compression.type": codec, "batch.size": 20_000, "linger.ms": 5},
            )
        )
        for number in range(PER_CODEC):
            offset = first_offset + len(written)
            value = "".join(random_letters("abcdefghij", k=VALUE_BYTES)).encode()
            entry = Entry(offset, BASE_TIME_MS + offset * 1000, b"%s-%d" % (codec.encode(), number), value)
            written.append(entry)
            on_delivery = on_fault(faults)
            producer.produce(
                topic, entry.value, entry.key, partition, timestamp=entry.timestamp_ms, on_delivery=on_delivery
            )
        assert producer.flush(DEADLINE_S) == 0
        assert not faults, faults[0]
    return written


def on_fault(faults: list[KafkaError]) -> Callable[[KafkaError | None, Any], None]:
    """Returns a delivery callback that collects errors."""

    def on_delivery(error: KafkaError | None, _message: Any) -> None:
        if error is not None:
            faults.append(error)

    return on_delivery


def delete_below(bootstrap: str, topic: str, offset: int, partition: int = 0) -> None:
    admin = AdminClient(settings(bootstrap))
    [future] = admin.delete_records([TopicPartition(topic, partition, offset)]).values()
    assert future.result(DEADLINE_S).low_watermark == offset


def offsets(bootstrap: str, topic: str, partition: int = 0) -> tuple[int, int]:
    """Returns beginning and end once the partition has a leader: Kafka needs a moment after a load."""
    deadline = time.monotonic() + DEADLINE_S
    with closing(Consumer(settings(bootstrap, **{"group.id": "interop"}))) as consumer:
        while True:
            try:
                return consumer.get_watermark_offsets(
                    TopicPartition(topic, partition), timeout=DEADLINE_S, cached=False
                )
            except KafkaException:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)


def offset_for_time(bootstrap: str, topic: str, timestamp_ms: int, partition: int = 0) -> int:
    with closing(Consumer(settings(bootstrap, **{"group.id": "interop"}))) as consumer:
        [found] = consumer.offsets_for_times([TopicPartition(topic, partition, timestamp_ms)], timeout=DEADLINE_S)
    return found.offset


def read(bootstrap: str, topic: str, start: int, end: int, partition: int = 0) -> list[Entry]:
    """Reads `end - start` records from `start`; CRCs are checked by the client."""
    config = settings(
        bootstrap,
        **{"group.id": "interop", "enable.auto.commit": False, "auto.offset.reset": "error", "check.crcs": True},
    )
    entries: list[Entry] = []
    with closing(Consumer(config)) as consumer:
        consumer.assign([TopicPartition(topic, partition, start)])
        while len(entries) < end - start:
            messages = consumer.consume(end - start - len(entries), timeout=DEADLINE_S)
            assert messages, f"{len(entries)} of {end - start} records"
            for message in messages:
                error = message.error()
                if error is not None and error.code() == KafkaError._UNSUPPORTED_FEATURE:
                    continue  # librdkafka looks for a group coordinator although no group is used
                assert error is None, error
                entries.append(Entry(message.offset(), message.timestamp()[1], message.key(), message.value()))
    return entries
