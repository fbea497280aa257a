"""Members of one group, each a separate program (`client_processes.py`) with a given client library, and the writer of
their records.

A member reports its assignment and generation, the offset at which it starts each partition, and its commits; times are
on the monotonic clock, which is that of the whole machine. A commit that is refused because the group is ahead of the
member is no error.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import aiokafka
import confluent_kafka
from aiokafka.errors import KafkaError as AiokafkaError

from .client_processes import asked_to_end, tell

with warnings.catch_warnings():
    warnings.filterwarnings("ignore", "(read|open)_text is deprecated", DeprecationWarning)
    import kafka
    from kafka.errors import KafkaError as KafkaPythonError

TOPIC, GROUP = "shared", "members"
PARTITIONS = 6
POLL_S = 0.1
SESSION_MS = 3_000
HEARTBEAT_MS = 300
WRITE_EACH_S = 0.01

Ends = dict[int, int]
"""Partition → the next offset to be read."""


class Story:
    """The reports of a member."""

    def __init__(self) -> None:
        self._new: dict[int, float] = {}
        self.ending = asked_to_end()

    def on_assigned(self, partitions: list[int], generation: int, member_id: str) -> None:
        self._new = dict.fromkeys(partitions, time.monotonic())
        tell({"assigned": sorted(partitions), "generation": generation, "member": member_id, "at": time.monotonic()})

    def on_read(self, partition: int, offset: int) -> None:
        since = self._new.pop(partition, None)
        if since is not None:
            tell({"resumed": partition, "offset": offset, "since": since})

    def on_committed(self, ends: Ends) -> None:
        tell({"committed": list(ends.items()), "at": time.monotonic()})


def confluent_member(bootstrap: str, story: Story) -> None:
    """confluent-kafka, which gets its assignment from the group's leader."""
    _confluent_member(bootstrap, story, {"session.timeout.ms": SESSION_MS, "heartbeat.interval.ms": HEARTBEAT_MS})


def next_generation_member(bootstrap: str, story: Story) -> None:
    """confluent-kafka, which gets its assignment from the broker, incrementally (KIP-848)."""
    _confluent_member(bootstrap, story, {"group.protocol": "consumer"})


def _confluent_member(bootstrap: str, story: Story, settings: dict[str, Any]) -> None:
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "broker.address.family": "v4",
            "group.id": GROUP,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "reconnect.backoff.max.ms": 500,
            **settings,
        }
    )

    ends: Ends = {}

    def on_assign(_: object, places: list[Any]) -> None:
        told = (
            consumer.consumer_group_metadata()
        )  # "CGMDv2:", the generation, then the ids of group and member, each ended by a zero.
        # With KIP-848 it is the member's epoch.
        generation = int.from_bytes(told[7:11], sys.byteorder, signed=True)
        member_id = told[11:].split(b"\0")[1].decode()
        story.on_assigned([place.partition for place in places], generation, member_id)
        for place in places:
            ends.pop(place.partition, None)

    consumer.subscribe([TOPIC], on_assign=on_assign)
    while not story.ending.is_set():
        for message in consumer.consume(50, POLL_S):
            if message.error() is None:
                story.on_read(message.partition(), message.offset())
                ends[message.partition()] = (message.offset() or 0) + 1
        # A refused commit is repeated while the partition is assigned: with KIP-848 it may stay assigned without new
        # records.
        for number in ends.keys() - {place.partition for place in consumer.assignment()}:
            del ends[number]
        if ends:
            try:
                wanted = [confluent_kafka.TopicPartition(TOPIC, number, offset) for number, offset in ends.items()]
                done = {
                    place.partition: place.offset
                    for place in consumer.commit(offsets=wanted, asynchronous=False)
                    if place.error is None
                }
                story.on_committed(done)
                for number in done:
                    del ends[number]
            except confluent_kafka.KafkaException as error:
                tell({"refused": str(error)})
    consumer.close()


def kafka_python_member(bootstrap: str, story: Story) -> None:
    """kafka-python."""
    consumer: Any = kafka.KafkaConsumer(
        bootstrap_servers=bootstrap.split(","),
        group_id=GROUP,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        session_timeout_ms=SESSION_MS,
        heartbeat_interval_ms=HEARTBEAT_MS,
        metadata_max_age_ms=2_000,
    )

    class Listener(kafka.ConsumerRebalanceListener):  # type: ignore[misc]
        def on_partitions_revoked(self, revoked: Any) -> None:
            pass

        def on_partitions_assigned(self, assigned: Any) -> None:
            generation = consumer._coordinator._generation
            story.on_assigned([place.partition for place in assigned], generation.generation_id, generation.member_id)

    consumer.partitions_for_topic(TOPIC)
    consumer.subscribe([TOPIC], listener=Listener())
    while not story.ending.is_set():
        ends: Ends = {}
        for place, records in consumer.poll(timeout_ms=int(POLL_S * 1000)).items():
            story.on_read(place.partition, records[0].offset)
            ends[place.partition] = records[-1].offset + 1
        if ends:
            try:
                consumer.commit(
                    {
                        kafka.TopicPartition(TOPIC, number): kafka.OffsetAndMetadata(offset, "", -1)
                        for number, offset in ends.items()
                    }
                )
                story.on_committed(ends)
            except KafkaPythonError as error:
                tell({"refused": repr(error)})
    consumer.close()


def aiokafka_member(bootstrap: str, story: Story) -> None:
    """aiokafka."""
    asyncio.run(_aiokafka_member(bootstrap, story))


async def _aiokafka_member(bootstrap: str, story: Story) -> None:
    consumer = aiokafka.AIOKafkaConsumer(
        bootstrap_servers=bootstrap,
        group_id=GROUP,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        session_timeout_ms=SESSION_MS,
        heartbeat_interval_ms=HEARTBEAT_MS,
        metadata_max_age_ms=2_000,
    )

    class Listener(aiokafka.ConsumerRebalanceListener):  # type: ignore[misc]
        def on_partitions_revoked(self, revoked: Any) -> None:
            pass

        def on_partitions_assigned(self, assigned: Any) -> None:
            coordinator = consumer._coordinator
            story.on_assigned([place.partition for place in assigned], coordinator.generation, coordinator.member_id)

    consumer.subscribe([TOPIC], listener=Listener())
    await consumer.start()
    while not story.ending.is_set():
        ends: Ends = {}
        for place, records in (await consumer.getmany(timeout_ms=int(POLL_S * 1000))).items():
            story.on_read(place.partition, records[0].offset)
            ends[place.partition] = records[-1].offset + 1
        if ends:
            try:
                await consumer.commit(
                    {aiokafka.TopicPartition(TOPIC, number): offset for number, offset in ends.items()}
                )
                story.on_committed(ends)
            except AiokafkaError as error:
                tell({"refused": repr(error)})
    await consumer.stop()


def writer(bootstrap: str, story: Story) -> None:
    """Writes to all partitions in turn, and at the end waits until all records are acknowledged."""
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": bootstrap,
            "broker.address.family": "v4",
            "enable.idempotence": True,
            "linger.ms": 5,
            "reconnect.backoff.max.ms": 500,
        }
    )
    number = 0
    while not story.ending.wait(WRITE_EACH_S):
        producer.produce(TOPIC, b"%d" % number, partition=number % PARTITIONS)
        producer.poll(0)
        number += 1
    sys.exit(producer.flush(20))


PROGRAMS: dict[str, Callable[[str, Story], None]] = {
    "confluent-kafka": confluent_member,
    "next-generation": next_generation_member,
    "kafka-python": kafka_python_member,
    "aiokafka": aiokafka_member,
    "writer": writer,
}

if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    PROGRAMS[given["program"]](given["bootstrap"], Story())
