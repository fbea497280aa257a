"""aiokafka: each call runs its own short event loop, so that the tests stay synchronous."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic, RecordsToDelete
from aiokafka.errors import OffsetOutOfRangeError, for_code

from .driver import DEADLINE_S, OutgoingRecord, OutOfRangeError, ReadRecord, Reset

MAX_BATCH_BYTES = 1_000_000


async def read_records(consumer: AIOKafkaConsumer, count: int) -> list[ReadRecord]:
    """Returns the next `count` records of the one assigned partition."""
    records: list[ReadRecord] = []
    async with asyncio.timeout(DEADLINE_S):
        while len(records) < count:
            try:
                record = await consumer.getone()
            except OffsetOutOfRangeError as error:
                raise OutOfRangeError(str(error)) from error
            records.append(ReadRecord(record.offset, record.timestamp, record.key, record.value, tuple(record.headers)))
    return records


class AiokafkaReader:
    """A started consumer with one assigned partition, and its loop."""

    def __init__(self, runner: asyncio.Runner, consumer: AIOKafkaConsumer, place: TopicPartition) -> None:
        self._runner = runner
        self._consumer = consumer
        self._place = place

    def read(self, count: int) -> list[ReadRecord]:
        return self._runner.run(read_records(self._consumer, count))

    def seek(self, offset: int) -> None:
        async def seek() -> None:
            self._consumer.seek(self._place, offset)

        self._runner.run(seek())


class Aiokafka:
    """The driver of aiokafka."""

    name = "aiokafka"

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap

    def produce(
        self,
        topic: str,
        records: Sequence[OutgoingRecord],
        *,
        partition: int = 0,
        codec: str = "none",
        idempotent: bool = False,
    ) -> None:
        async def produce() -> None:
            producer = AIOKafkaProducer(
                bootstrap_servers=self._bootstrap,
                acks="all",
                compression_type=None if codec == "none" else codec,
                enable_idempotence=idempotent,
                max_batch_size=MAX_BATCH_BYTES,
            )
            await producer.start()
            try:
                batch = producer.create_batch()
                for record in records:
                    kept = batch.append(
                        key=record.key, value=record.value, timestamp=record.timestamp_ms, headers=list(record.headers)
                    )
                    assert kept is not None, "the records do not fit into one batch"
                async with asyncio.timeout(DEADLINE_S):
                    await (await producer.send_batch(batch, topic, partition=partition))
            finally:
                await producer.stop()

        asyncio.run(produce())

    def _consumer(self, reset: str = "none") -> AIOKafkaConsumer:
        return AIOKafkaConsumer(
            bootstrap_servers=self._bootstrap,
            group_id=None,
            enable_auto_commit=False,
            auto_offset_reset=reset,
            fetch_max_wait_ms=100,
        )

    @contextmanager
    def reader(self, topic: str, partition: int, start: int, *, reset: Reset = "error") -> Iterator[AiokafkaReader]:
        place = TopicPartition(topic, partition)

        async def open_consumer() -> AIOKafkaConsumer:
            consumer = self._consumer({"error": "none", "earliest": "earliest"}[reset])
            await consumer.start()
            consumer.assign([place])
            consumer.seek(place, start)
            return consumer

        with asyncio.Runner() as runner:
            consumer = runner.run(open_consumer())
            try:
                yield AiokafkaReader(runner, consumer, place)
            finally:
                runner.run(consumer.stop())

    @asynccontextmanager
    async def _started_consumer(self) -> AsyncIterator[AIOKafkaConsumer]:
        consumer = self._consumer()
        await consumer.start()
        try:
            async with asyncio.timeout(DEADLINE_S):
                yield consumer
        finally:
            await consumer.stop()

    def offsets(self, topic: str, partitions: Sequence[int]) -> dict[int, tuple[int, int]]:
        places = [TopicPartition(topic, partition) for partition in partitions]

        async def offsets() -> dict[int, tuple[int, int]]:
            async with self._started_consumer() as consumer:
                beginning = await consumer.beginning_offsets(places)
                end = await consumer.end_offsets(places)
            return {place.partition: (beginning[place], end[place]) for place in places}

        return asyncio.run(offsets())

    def offset_for_time(self, topic: str, partition: int, timestamp_ms: int) -> int | None:
        place = TopicPartition(topic, partition)

        async def find() -> int | None:
            async with self._started_consumer() as consumer:
                found = (await consumer.offsets_for_times({place: timestamp_ms}))[place]
            return None if found is None else int(found.offset)

        return asyncio.run(find())

    @asynccontextmanager
    async def _admin(self) -> AsyncIterator[AIOKafkaAdminClient]:
        admin = AIOKafkaAdminClient(bootstrap_servers=self._bootstrap)
        await admin.start()
        try:
            async with asyncio.timeout(DEADLINE_S):
                yield admin
        finally:
            await admin.close()

    def create_topic(self, topic: str, partitions: int, configs: Mapping[str, str], *, replicas: int = 1) -> None:
        async def create() -> None:
            new = NewTopic(topic, num_partitions=partitions, replication_factor=replicas, topic_configs=dict(configs))
            async with self._admin() as admin:
                answer = await admin.create_topics([new])
            for name, code, *_message in answer.topic_errors:
                if code:
                    raise for_code(code)(name)

        asyncio.run(create())

    def delete_topic(self, topic: str) -> None:
        async def delete() -> None:
            async with self._admin() as admin:
                answer = await admin.delete_topics([topic])
            for name, code, *_rest in answer.topic_error_codes:
                if code:
                    raise for_code(code)(name)

        asyncio.run(delete())

    def partition_count(self, topic: str) -> int | None:
        async def count() -> int | None:
            async with self._admin() as admin:
                if topic not in await admin.list_topics():
                    return None
                [described] = await admin.describe_topics([topic])
            return len(described["partitions"])

        return asyncio.run(count())

    def delete_records(self, topic: str, offsets: Mapping[int, int]) -> dict[int, int]:
        asked = {
            TopicPartition(topic, partition): RecordsToDelete(before_offset=offset)
            for partition, offset in offsets.items()
        }

        async def delete() -> dict[int, int]:
            async with self._admin() as admin:
                answers = await admin.delete_records(asked)
            return {place.partition: low_watermark for place, low_watermark in answers.items()}

        return asyncio.run(delete())
