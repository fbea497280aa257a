"""Clients that stay open over several calls, for what a `Driver` call cannot express: a broker that restarts, many
partitions.

A producer sends without waiting and gets the results at `flush`. A consumer has several partitions, and requests
offsets and seeks.
"""

from __future__ import annotations

import asyncio
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager
from typing import Any, Protocol

import aiokafka
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from .driver import DEADLINE_S, OutgoingRecord, ReadRecord, until
from .driver_aiokafka import Aiokafka
from .driver_confluent import NO_GROUPS, Confluent, received
from .driver_kafka_python import DEADLINE_MS, KafkaConsumer, KafkaProducer, KafkaPython
from .driver_kafka_python import TopicPartition as KafkaPythonPlace
from .driver_kcat import Kcat, KcatError

BACKOFF_MS = 100
"""The retry interval of a client that lost its broker; some clients would otherwise wait longer after each failure."""

CONNECTION_LOST = frozenset({KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN})
"""librdkafka reports it to the application and continues to retry by itself."""

ALL = "all"
KCAT_READS_BYTES = 1024
"""kcat takes its input in pieces of this size: a line is sent when the piece with its end is full."""

LARGEST_BYTES = 16_000_000
"""The clients' own limits are above any limit of the broker's that a test meets."""


class OpenProducer(Protocol):
    """A producer for one topic, acks=all unless opened otherwise."""

    def send(self, record: OutgoingRecord, partition: int) -> None:
        """Submit `record` without waiting."""

    def flush(self) -> list[int]:
        """Returns the offset of each record since the last flush, in the order of `send`, as soon as all are
        acknowledged.

        With acks=0 nothing is acknowledged: it returns when all are sent, and the offsets have no meaning.

        Errors: the client's own if a record was refused.
        """


class OpenConsumer(Protocol):
    """A consumer of some partitions of one topic, without a group."""

    def read(self, count: int) -> dict[int, list[ReadRecord]]:
        """Returns exactly the next `count` records, by partition. Errors: TimeoutError after `DEADLINE_S`."""

    def seek(self, partition: int, offset: int) -> None:
        """Continues at `offset`."""

    def offset_for_time(self, partition: int, timestamp_ms: int) -> int | None:
        """Returns the offset of the first record at or after `timestamp_ms`, requested by this consumer."""


class ConfluentProducer:
    """confluent-kafka's."""

    def __init__(self, producer: Producer, topic: str) -> None:
        self._producer = producer
        self._topic = topic
        self._outcomes: list[KafkaError | int | None] = []

    def send(self, record: OutgoingRecord, partition: int) -> None:
        outcomes, slot = self._outcomes, len(self._outcomes)
        outcomes.append(None)

        def on_delivery(error: KafkaError | None, message: Message) -> None:
            outcomes[slot] = message.offset() if error is None else error

        self._producer.produce(
            self._topic,
            value=record.value,
            key=record.key,
            partition=partition,
            timestamp=record.timestamp_ms or 0,
            headers=list(record.headers),
            on_delivery=on_delivery,
        )

    def flush(self) -> list[int]:
        left = self._producer.flush(DEADLINE_S)
        assert left == 0, f"{left} records not acknowledged after {DEADLINE_S} s"
        outcomes, self._outcomes = self._outcomes, []
        for outcome in outcomes:
            if isinstance(outcome, KafkaError):
                raise KafkaException(outcome)
        return [outcome for outcome in outcomes if isinstance(outcome, int)]


class ConfluentConsumer:
    """confluent-kafka's."""

    def __init__(self, consumer: Consumer, topic: str) -> None:
        self._consumer = consumer
        self._topic = topic

    def read(self, count: int) -> dict[int, list[ReadRecord]]:
        records: dict[int, list[ReadRecord]] = {}
        deadline = time.monotonic() + DEADLINE_S
        while count > 0:
            message = self._consumer.poll(max(0.0, deadline - time.monotonic()))
            if message is None:
                raise TimeoutError(f"{count} records did not arrive within {DEADLINE_S} s")
            error = message.error()
            if error is None:
                partition = message.partition()
                assert partition is not None
                records.setdefault(partition, []).append(received(message))
                count -= 1
            elif error.code() not in NO_GROUPS and not error.retriable() and error.code() not in CONNECTION_LOST:
                raise KafkaException(error)
        return records

    def seek(self, partition: int, offset: int) -> None:
        self._consumer.seek(TopicPartition(self._topic, partition, offset))

    def offset_for_time(self, partition: int, timestamp_ms: int) -> int | None:
        [found] = self._consumer.offsets_for_times(
            [TopicPartition(self._topic, partition, timestamp_ms)], timeout=DEADLINE_S
        )
        return found.offset if found.offset >= 0 else None


class KafkaPythonProducer:
    """kafka-python's."""

    def __init__(self, producer: Any, topic: str) -> None:
        self._producer = producer
        self._topic = topic
        self._futures: list[Any] = []

    def send(self, record: OutgoingRecord, partition: int) -> None:
        headers = list(record.headers)
        self._futures.append(
            self._producer.send(self._topic, record.value, record.key, headers, partition, record.timestamp_ms)
        )

    def flush(self) -> list[int]:
        self._producer.flush(DEADLINE_S)
        futures, self._futures = self._futures, []
        return [future.get(DEADLINE_S).offset for future in futures]


class KafkaPythonConsumer:
    """kafka-python's."""

    def __init__(self, consumer: Any, topic: str) -> None:
        self._consumer = consumer
        self._topic = topic

    def read(self, count: int) -> dict[int, list[ReadRecord]]:
        records: dict[int, list[ReadRecord]] = {}
        deadline = time.monotonic() + DEADLINE_S
        while count > 0:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{count} records did not arrive within {DEADLINE_S} s")
            for place, found in self._consumer.poll(timeout_ms=200, max_records=count).items():
                rows = [ReadRecord(r.offset, r.timestamp, r.key, r.value, tuple(r.headers)) for r in found]
                records.setdefault(place.partition, []).extend(rows)
                count -= len(rows)
        return records

    def seek(self, partition: int, offset: int) -> None:
        self._consumer.seek(KafkaPythonPlace(self._topic, partition), offset)

    def offset_for_time(self, partition: int, timestamp_ms: int) -> int | None:
        place = KafkaPythonPlace(self._topic, partition)
        found = self._consumer.offsets_for_times({place: timestamp_ms}, timeout_ms=DEADLINE_MS)[place]
        return None if found is None else int(found.offset)


class AiokafkaProducer:
    """aiokafka's, and its loop."""

    def __init__(self, runner: asyncio.Runner, producer: aiokafka.AIOKafkaProducer, topic: str) -> None:
        self._runner = runner
        self._producer = producer
        self._topic = topic
        self._futures: list[asyncio.Future[Any]] = []

    def send(self, record: OutgoingRecord, partition: int) -> None:
        sending = self._producer.send(
            self._topic,
            record.value,
            record.key,
            partition,
            timestamp_ms=record.timestamp_ms,
            headers=list(record.headers),
        )
        self._futures.append(self._runner.run(sending))

    def flush(self) -> list[int]:
        futures, self._futures = self._futures, []

        async def acknowledged() -> list[int]:
            async with asyncio.timeout(DEADLINE_S):
                return [-1 if done is None else done.offset for done in await asyncio.gather(*futures)]

        return self._runner.run(acknowledged())


class AiokafkaConsumer:
    """aiokafka's, and its loop."""

    def __init__(self, runner: asyncio.Runner, consumer: aiokafka.AIOKafkaConsumer, topic: str) -> None:
        self._runner = runner
        self._consumer = consumer
        self._topic = topic

    def read(self, count: int) -> dict[int, list[ReadRecord]]:
        async def read() -> dict[int, list[ReadRecord]]:
            records: dict[int, list[ReadRecord]] = {}
            async with asyncio.timeout(DEADLINE_S):
                for _ in range(count):
                    r = await self._consumer.getone()
                    records.setdefault(r.partition, []).append(
                        ReadRecord(r.offset, r.timestamp, r.key, r.value, tuple(r.headers))
                    )
            return records

        return self._runner.run(read())

    def seek(self, partition: int, offset: int) -> None:
        async def seek() -> None:
            self._consumer.seek(aiokafka.TopicPartition(self._topic, partition), offset)

        self._runner.run(seek())

    def offset_for_time(self, partition: int, timestamp_ms: int) -> int | None:
        place = aiokafka.TopicPartition(self._topic, partition)
        found = self._runner.run(self._consumer.offsets_for_times({place: timestamp_ms}))[place]
        return None if found is None else int(found.offset)


def kcat_value(number: int) -> bytes:
    """Returns the number, padded with zeros so that, with the key `k` and a line break, it is one of kcat's pieces."""
    return str(number).zfill(KCAT_READS_BYTES - len("k|\n")).encode()


class KcatProducer:
    """kcat, with its standard input as a queue. It does not report acknowledgements, so the broker is asked."""

    def __init__(self, driver: Kcat, process: subprocess.Popen[str], topic: str) -> None:
        self._driver = driver
        self._process = process
        self._topic = topic
        self._ends: dict[int, int] = {}
        self._sent: list[int] = []

    def send(self, record: OutgoingRecord, partition: int) -> None:
        assert partition == 0
        assert self._process.stdin is not None
        assert record.key is not None
        assert record.value is not None
        line = f"{record.key.decode()}|{record.value.decode()}\n"
        assert len(line) % KCAT_READS_BYTES == 0, "kcat would wait for more"
        self._process.stdin.write(line)
        self._process.stdin.flush()
        offset = self._ends.setdefault(partition, 0)
        self._ends[partition] = offset + 1
        self._sent.append(offset)

    def flush(self) -> list[int]:
        def arrived() -> bool:
            offsets = self._driver.offsets(self._topic, list(self._ends))
            return all(offsets[partition][1] >= end for partition, end in self._ends.items())

        until(arrived, but=(KcatError,))
        sent, self._sent = self._sent, []
        return sent


@contextmanager
def confluent_producer(bootstrap: str, topic: str, *, idempotent: bool, acks: str = ALL) -> Iterator[OpenProducer]:
    settings = {"acks": acks, "enable.idempotence": idempotent, "message.max.bytes": LARGEST_BYTES, "linger.ms": 1}
    yield ConfluentProducer(Producer(librdkafka(bootstrap) | settings), topic)


def librdkafka(bootstrap: str) -> dict[str, Any]:
    """Returns the settings that its producer and consumer share; restarts of a broker are not reported here."""
    backoff = {"reconnect.backoff.ms": BACKOFF_MS, "reconnect.backoff.max.ms": BACKOFF_MS}
    return {"bootstrap.servers": bootstrap, "broker.address.family": "v4", "log_level": 0} | backoff


@contextmanager
def confluent_consumer(bootstrap: str, topic: str, starts: Mapping[int, int]) -> Iterator[OpenConsumer]:
    settings = {
        "group.id": f"unused-{uuid.uuid4()}",
        "enable.auto.commit": False,
        "auto.offset.reset": "error",
        "fetch.wait.max.ms": 100,
    }
    with closing(Consumer(librdkafka(bootstrap) | settings)) as consumer:
        consumer.assign([TopicPartition(topic, partition, start) for partition, start in starts.items()])
        yield ConfluentConsumer(consumer, topic)


def kafka_python(bootstrap: str) -> dict[str, Any]:
    return {"bootstrap_servers": bootstrap, "reconnect_backoff_ms": BACKOFF_MS, "reconnect_backoff_max_ms": BACKOFF_MS}


@contextmanager
def kafka_python_producer(bootstrap: str, topic: str, *, idempotent: bool, acks: str = ALL) -> Iterator[OpenProducer]:
    settings = {
        "acks": acks if acks == ALL else int(acks),
        "enable_idempotence": idempotent,
        "max_request_size": LARGEST_BYTES,
    }
    with closing(KafkaProducer(**kafka_python(bootstrap), **settings)) as producer:
        yield KafkaPythonProducer(producer, topic)


@contextmanager
def kafka_python_consumer(bootstrap: str, topic: str, starts: Mapping[int, int]) -> Iterator[OpenConsumer]:
    settings = {"group_id": None, "enable_auto_commit": False, "auto_offset_reset": "none", "fetch_max_wait_ms": 100}
    with closing(KafkaConsumer(**kafka_python(bootstrap), **settings)) as consumer:
        consumer.assign([KafkaPythonPlace(topic, partition) for partition in starts])
        for partition, start in starts.items():
            consumer.seek(KafkaPythonPlace(topic, partition), start)
        yield KafkaPythonConsumer(consumer, topic)


@contextmanager
def aiokafka_producer(bootstrap: str, topic: str, *, idempotent: bool, acks: str = ALL) -> Iterator[OpenProducer]:
    async def start() -> aiokafka.AIOKafkaProducer:
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=bootstrap,
            acks=acks if acks == ALL else int(acks),
            enable_idempotence=idempotent,
            max_request_size=LARGEST_BYTES,
        )
        await producer.start()
        return producer

    with asyncio.Runner() as runner:
        producer = runner.run(start())
        try:
            yield AiokafkaProducer(runner, producer, topic)
        finally:
            runner.run(producer.stop())


@contextmanager
def aiokafka_consumer(bootstrap: str, topic: str, starts: Mapping[int, int]) -> Iterator[OpenConsumer]:
    async def start() -> aiokafka.AIOKafkaConsumer:
        consumer = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=bootstrap,
            group_id=None,
            enable_auto_commit=False,
            auto_offset_reset="none",
            fetch_max_wait_ms=100,
        )
        await consumer.start()
        consumer.assign([aiokafka.TopicPartition(topic, partition) for partition in starts])
        for partition, start in starts.items():
            consumer.seek(aiokafka.TopicPartition(topic, partition), start)
        return consumer

    with asyncio.Runner() as runner:
        consumer = runner.run(start())
        try:
            yield AiokafkaConsumer(runner, consumer, topic)
        finally:
            runner.run(consumer.stop())


@contextmanager
def kcat_producer(bootstrap: str, topic: str, *, idempotent: bool, acks: str = ALL) -> Iterator[OpenProducer]:
    """Partition 0 only. It ends with its input, and must then have delivered everything."""
    settings = {
        "acks": acks,
        "linger.ms": 1,
        "enable.idempotence": str(idempotent).lower(),
        "broker.address.family": "v4",
        "reconnect.backoff.ms": BACKOFF_MS,
        "reconnect.backoff.max.ms": BACKOFF_MS,
    }
    arguments = [word for name, value in settings.items() for word in ("-X", f"{name}={value}")]
    # -E: kcat continues although all brokers are down for a moment.
    command = ["kcat", "-b", bootstrap, "-P", "-E", "-t", topic, "-p", "0", "-K", "|", *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            yield KcatProducer(Kcat(bootstrap), process, topic)
            assert process.stdin is not None
            process.stdin.close()
            assert process.wait(DEADLINE_S) == 0
        finally:
            process.kill()


OPEN_PRODUCERS: dict[str, Callable[..., AbstractContextManager[OpenProducer]]] = {
    Kcat.name: kcat_producer,
    Confluent.name: confluent_producer,
    KafkaPython.name: kafka_python_producer,
    Aiokafka.name: aiokafka_producer,
}
OPEN_CONSUMERS: dict[str, Callable[[str, str, Mapping[int, int]], AbstractContextManager[OpenConsumer]]] = {
    Confluent.name: confluent_consumer,
    KafkaPython.name: kafka_python_consumer,
    Aiokafka.name: aiokafka_consumer,
}
"""kcat is missing here: it reads to a given end and can neither seek nor request offsets."""
