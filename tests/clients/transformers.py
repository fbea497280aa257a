"""A consume-transform-produce loop for each client library: records of one topic are written to another, with the
offsets, in one transaction."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final, Protocol, TypeVar

import kafka
import kafka.errors
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as AiokafkaPartition
from aiokafka.errors import KafkaError as AiokafkaError
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from .driver import until

WAIT_S: Final = 120
T = TypeVar("T")


class Transformer(Protocol):
    """One worker: a member of a group with a producer.

    `FENCED` are the errors that report that another producer has replaced it.
    """

    FENCED: tuple[type[Exception], ...]

    def __init__(self, bootstrap: str, group: str, transactional_id: str, source: str, target: str) -> None: ...

    def begin(self, count: int) -> list[bytes]:
        """Reads `count` records and writes them in a new transaction, with the offsets after them.

        Returns them; fewer at the end.
        """
        ...

    def commit(self) -> None:
        """Commits the transaction."""
        ...

    def abort(self) -> None:
        """Aborts the transaction, and seeks back to its start."""
        ...

    def close(self) -> None:
        """Leaves the group."""
        ...


class ConfluentTransformer:
    """librdkafka's."""

    FENCED = (KafkaException,)

    def __init__(self, bootstrap: str, group: str, transactional_id: str, source: str, target: str) -> None:
        self._target = target
        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "transactional.id": transactional_id, "linger.ms": 0}
        )
        self._producer.init_transactions(WAIT_S)
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "enable.partition.eof": False,
                "isolation.level": "read_committed",
            }
        )
        self._consumer.subscribe([source])

    def begin(self, count: int) -> list[bytes]:
        values: list[bytes] = []
        self._ends: dict[tuple[str, int], int] = {}
        deadline = time.monotonic() + WAIT_S
        while len(values) < count and time.monotonic() < deadline:
            message = self._consumer.poll(0.2)
            if message is None:
                continue
            assert message.error() is None, message.error()
            values.append(message.value())
            self._ends[(message.topic(), message.partition())] = (message.offset() or 0) + 1
        self._producer.begin_transaction()
        for value in values:
            self._producer.produce(self._target, value)
        offsets = [TopicPartition(topic, number, end) for (topic, number), end in self._ends.items()]
        self._producer.send_offsets_to_transaction(offsets, self._consumer.consumer_group_metadata(), WAIT_S)
        return values

    def commit(self) -> None:
        self._producer.commit_transaction(WAIT_S)

    def abort(self) -> None:
        self._producer.abort_transaction(WAIT_S)
        for found in self._consumer.committed([TopicPartition(*key) for key in self._ends], WAIT_S):
            self._consumer.seek(TopicPartition(found.topic, found.partition, max(found.offset, 0)))

    def close(self) -> None:
        self._consumer.close()


class KafkaPythonTransformer:
    """kafka-python's."""

    FENCED = (kafka.errors.KafkaError,)

    def __init__(self, bootstrap: str, group: str, transactional_id: str, source: str, target: str) -> None:
        self._target = target
        self._producer = kafka.KafkaProducer(bootstrap_servers=bootstrap, transactional_id=transactional_id)
        self._producer.init_transactions()
        self._consumer = kafka.KafkaConsumer(
            source,
            bootstrap_servers=bootstrap,
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            isolation_level="read_committed",
        )
        # A member that joins while the metadata are on their way may assign itself nothing, for good.
        until(lambda: self._consumer.partitions_for_topic(source) is not None)

    def begin(self, count: int) -> list[bytes]:
        values: list[bytes] = []
        self._ends: dict[Any, int] = {}
        deadline = time.monotonic() + WAIT_S
        while len(values) < count and time.monotonic() < deadline:
            for partition, records in self._consumer.poll(timeout_ms=200, max_records=count - len(values)).items():
                values += [record.value for record in records]
                self._ends[partition] = records[-1].offset + 1
        self._producer.begin_transaction()
        for value in values:
            self._producer.send(self._target, value)
        offsets = {partition: kafka.OffsetAndMetadata(end, "", -1) for partition, end in self._ends.items()}
        self._producer.send_offsets_to_transaction(offsets, self._consumer.group_metadata())
        return values

    def commit(self) -> None:
        self._producer.commit_transaction()

    def abort(self) -> None:
        self._producer.abort_transaction()
        for partition in self._ends:
            self._consumer.seek(partition, self._consumer.committed(partition) or 0)

    def close(self) -> None:
        self._consumer.close()
        self._producer.close(timeout=1)


class AiokafkaTransformer:
    """aiokafka's, on its own loop in a thread: it takes part in its group also between calls."""

    FENCED = (AiokafkaError,)

    def __init__(self, bootstrap: str, group: str, transactional_id: str, source: str, target: str) -> None:
        self._target, self._group = target, group
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()

        async def start() -> None:
            self._producer = AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=transactional_id)
            await self._producer.start()
            self._consumer = AIOKafkaConsumer(
                source,
                bootstrap_servers=bootstrap,
                group_id=group,
                auto_offset_reset="earliest",
                enable_auto_commit=False,
                isolation_level="read_committed",
            )
            await self._consumer.start()

        self._run(start)

    def _run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        return asyncio.run_coroutine_threadsafe(work(), self._loop).result(2 * WAIT_S)

    def begin(self, count: int) -> list[bytes]:
        async def work() -> list[bytes]:
            values: list[bytes] = []
            self._ends: dict[Any, int] = {}
            deadline = time.monotonic() + WAIT_S
            while len(values) < count and time.monotonic() < deadline:
                found: Mapping[Any, Any] = await self._consumer.getmany(timeout_ms=200, max_records=count - len(values))
                for partition, records in found.items():
                    values += [record.value for record in records]
                    self._ends[partition] = records[-1].offset + 1
            await self._producer.begin_transaction()
            for value in values:
                await self._producer.send(self._target, value)
            offsets = {AiokafkaPartition(key.topic, key.partition): end for key, end in self._ends.items()}
            await self._producer.send_offsets_to_transaction(offsets, self._group)
            return values

        return self._run(work)

    def commit(self) -> None:
        self._run(self._producer.commit_transaction)

    def abort(self) -> None:
        async def work() -> None:
            await self._producer.abort_transaction()
            for partition in self._ends:
                self._consumer.seek(partition, await self._consumer.committed(partition) or 0)

        self._run(work)

    def close(self) -> None:
        async def work() -> None:
            await self._consumer.stop()
            await self._producer.stop()

        try:
            self._run(work)
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(WAIT_S)
            self._loop.close()


TRANSFORMERS: Final[Mapping[str, type[Transformer]]] = {
    "confluent-kafka": ConfluentTransformer,
    "kafka-python": KafkaPythonTransformer,
    "aiokafka": AiokafkaTransformer,
}
