"""kafka-python 3.x."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import Any

with warnings.catch_warnings():
    # At its import the package reads its own message files by functions that are deprecated in Python 3.11.
    warnings.filterwarnings("ignore", "(read|open)_text is deprecated", DeprecationWarning)
    from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
    from kafka.errors import OffsetOutOfRangeError

from .driver import DEADLINE_S, OutgoingRecord, OutOfRangeError, ReadRecord, Reset

DEADLINE_MS = int(DEADLINE_S * 1000)


class KafkaPythonReader:
    """A consumer with one assigned partition."""

    def __init__(self, consumer: Any, place: TopicPartition) -> None:
        self._consumer = consumer
        self._place = place

    def read(self, count: int) -> list[ReadRecord]:
        records: list[ReadRecord] = []
        deadline = time.monotonic() + DEADLINE_S
        while len(records) < count:
            left_ms = int((deadline - time.monotonic()) * 1000)
            if left_ms <= 0:
                raise TimeoutError(f"{len(records)} of {count} records after {DEADLINE_S} s")
            try:
                polled = self._consumer.poll(timeout_ms=left_ms, max_records=count - len(records))
            except OffsetOutOfRangeError as error:
                raise OutOfRangeError(str(error)) from error
            records.extend(
                ReadRecord(r.offset, r.timestamp, r.key, r.value, tuple(r.headers)) for r in polled.get(self._place, ())
            )
        return records

    def seek(self, offset: int) -> None:
        self._consumer.seek(self._place, offset)


class KafkaPython:
    """The driver of kafka-python."""

    name = "kafka-python"

    def __init__(self, bootstrap: str) -> None:
        self._settings: dict[str, Any] = {"bootstrap_servers": bootstrap}

    def produce(
        self,
        topic: str,
        records: Sequence[OutgoingRecord],
        *,
        partition: int = 0,
        codec: str = "none",
        idempotent: bool = False,
    ) -> None:
        # linger_ms above the deadline: only flush sends, so that everything is in one batch.
        settings = {
            "acks": "all",
            "linger_ms": 60_000,
            "enable_idempotence": idempotent,
            "delivery_timeout_ms": 120_000,
        }
        with closing(
            KafkaProducer(**self._settings, **settings, compression_type=None if codec == "none" else codec)
        ) as producer:
            futures = [
                producer.send(topic, record.value, record.key, list(record.headers), partition, record.timestamp_ms)
                for record in records
            ]
            producer.flush(DEADLINE_S)
            for future in futures:
                future.get(DEADLINE_S)

    @contextmanager
    def _consumer(self, **settings: Any) -> Iterator[Any]:
        with closing(KafkaConsumer(**self._settings, group_id=None, enable_auto_commit=False, **settings)) as consumer:
            yield consumer

    @contextmanager
    def reader(self, topic: str, partition: int, start: int, *, reset: Reset = "error") -> Iterator[KafkaPythonReader]:
        place = TopicPartition(topic, partition)
        policy = {"error": "none", "earliest": "earliest"}[reset]
        with self._consumer(auto_offset_reset=policy, fetch_max_wait_ms=100) as consumer:
            consumer.assign([place])
            consumer.seek(place, start)
            yield KafkaPythonReader(consumer, place)

    def offsets(self, topic: str, partitions: Sequence[int]) -> dict[int, tuple[int, int]]:
        places = [TopicPartition(topic, partition) for partition in partitions]
        with self._consumer() as consumer:
            beginning = consumer.beginning_offsets(places, timeout_ms=DEADLINE_MS)
            end = consumer.end_offsets(places, timeout_ms=DEADLINE_MS)
        return {place.partition: (beginning[place], end[place]) for place in places}

    def offset_for_time(self, topic: str, partition: int, timestamp_ms: int) -> int | None:
        place = TopicPartition(topic, partition)
        with self._consumer() as consumer:
            found = consumer.offsets_for_times({place: timestamp_ms}, timeout_ms=DEADLINE_MS)[place]
        return None if found is None else int(found.offset)

    @contextmanager
    def _admin(self) -> Iterator[Any]:
        with closing(KafkaAdminClient(**self._settings)) as admin:
            yield admin

    def create_topic(self, topic: str, partitions: int, configs: Mapping[str, str], *, replicas: int = 1) -> None:
        options = {"num_partitions": partitions, "replication_factor": replicas, "configs": dict(configs)}
        with self._admin() as admin:
            admin.create_topics({topic: options}, timeout_ms=DEADLINE_MS)

    def delete_topic(self, topic: str) -> None:
        with self._admin() as admin:
            admin.delete_topics([topic], timeout_ms=DEADLINE_MS)

    def partition_count(self, topic: str) -> int | None:
        with self._admin() as admin:
            return len(admin.describe_topics([topic])[0]["partitions"]) if topic in admin.list_topics() else None

    def delete_records(self, topic: str, offsets: Mapping[int, int]) -> dict[int, int]:
        asked = {TopicPartition(topic, partition): offset for partition, offset in offsets.items()}
        with self._admin() as admin:
            answers = admin.delete_records(asked, timeout_ms=DEADLINE_MS)
        return {place.partition: answer["low_watermark"] for place, answer in answers.items()}

    def log_directories(self, topics: Mapping[str, Sequence[int]] | None) -> list[dict[str, Any]]:
        """Returns the DescribeLogDirs rows of some partitions, or of all: one for each log directory.

        No other Python client has this request.
        """
        with self._admin() as admin:
            [answer] = admin.describe_log_dirs(
                {topic: list(partitions) for topic, partitions in topics.items()} if topics else topics
            )
        return list(answer["log_dirs"])

    def producers(self, topic: str, partition: int) -> list[Any]:
        """Returns the DescribeProducers rows of a partition. No other Python client has this request."""
        place = TopicPartition(topic, partition)
        with self._admin() as admin:
            return list(admin.describe_producers([place])[place].active_producers)
