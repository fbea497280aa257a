"""Members of consumer groups, and administrators of groups, for each client.

A member gets its first assignment, and takes part in rebalances, only while it is polled; aiokafka's does so by itself.
"""

from __future__ import annotations

import asyncio
import json
import queue
import subprocess
import threading
import time
import warnings
from collections.abc import Callable, Coroutine, Iterator
from contextlib import closing, contextmanager, suppress
from typing import Any, Final, Protocol

import aiokafka
from aiokafka.admin import AIOKafkaAdminClient
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from kafka.errors import CoordinatorNotAvailableError

from .driver import DEADLINE_S, until
from .driver_aiokafka import Aiokafka
from .driver_confluent import Confluent
from .driver_kafka_python import KafkaConsumer, KafkaPython
from .driver_kafka_python import TopicPartition as KafkaPythonPlace

with warnings.catch_warnings():
    warnings.filterwarnings("ignore", "(read|open)_text is deprecated", DeprecationWarning)
    from kafka import KafkaAdminClient
    from kafka.errors import RebalanceInProgressError
    from kafka.structs import OffsetAndMetadata

POLL_S: Final = 0.1
SESSION_MS: Final = 6_000
"""The shortest session that a broker allows by default."""

_LONG_POLL_MS: Final = 1_000
_BETWEEN_POLLS_S: Final = 0.01
"""So that a commit gets its turn."""

Place = tuple[int, int]
"""Partition and offset of a record."""


class Member(Protocol):
    """A consumer that has subscribed to one topic."""

    def poll(self) -> list[Place]:
        """Takes part in the group for a tenth of a second, and returns the records that arrived."""

    def assignment(self) -> set[int]:
        """Returns the partitions that it has now."""

    def commit(self) -> None:
        """Commits the returned records, and waits for the response."""

    def close(self) -> None:
        """Leaves the group."""


class ConfluentMember:
    """confluent-kafka."""

    def __init__(self, bootstrap: str, topic: str, group: str, instance_id: str | None) -> None:
        static = {} if instance_id is None else {"group.instance.id": instance_id}
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "broker.address.family": "v4",
                "group.id": group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "session.timeout.ms": SESSION_MS,
                "heartbeat.interval.ms": 200,
                **static,
            }
        )
        self._consumer.subscribe([topic])

    def poll(self) -> list[Place]:
        found: list[Any] = []
        for message in self._consumer.consume(100, POLL_S):
            error = message.error()
            if error is not None:
                raise KafkaException(error)
            found.append((message.partition(), message.offset()))
        return found

    def assignment(self) -> set[int]:
        return {place.partition for place in self._consumer.assignment()}

    def commit(self) -> None:
        self._consumer.commit(asynchronous=False)

    def close(self) -> None:
        self._consumer.close()


class KafkaPythonMember:
    """kafka-python, polled in its own thread.

    Version 3.0 forgets a join that completes between two polls and joins again, which makes the others join again too:
    members that are polled in turns for a moment each may do so forever. A poll that lasts as long as the join
    completes it.
    """

    def __init__(self, bootstrap: str, topic: str, group: str, instance_id: str | None) -> None:
        self._consumer: Any = KafkaConsumer(
            bootstrap_servers=bootstrap,
            group_id=group,
            group_instance_id=instance_id,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=200,
        )
        # A leader without the topic's metadata assigns no partitions, and does not refresh it for minutes.
        self._consumer.partitions_for_topic(topic)
        self._consumer.subscribe([topic])
        self._records: queue.SimpleQueue[tuple[Any, int]] = queue.SimpleQueue()
        self._reached: dict[Any, Any] = {}
        self._lock = threading.Lock()
        self._stops = threading.Event()
        self._thread = threading.Thread(target=self._poll_until_stopped)
        self._thread.start()

    def _poll_until_stopped(self) -> None:
        while not self._stops.wait(_BETWEEN_POLLS_S):
            with self._lock:
                polled = self._consumer.poll(timeout_ms=_LONG_POLL_MS)
            for place, records in polled.items():
                for record in records:
                    self._records.put((place, record.offset))

    def poll(self) -> list[Place]:
        found = []
        with suppress(queue.Empty):
            found.append(self._records.get(timeout=POLL_S))
            while True:
                found.append(self._records.get_nowait())
        self._reached |= {place: OffsetAndMetadata(offset + 1, "", -1) for place, offset in found}
        return [(place.partition, offset) for place, offset in found]

    def assignment(self) -> set[int]:
        return {place.partition for place in self._consumer.assignment()}

    def commit(self) -> None:
        """Late metadata make this client join again, and its error asks for a poll before the commit."""
        deadline_s = time.monotonic() + DEADLINE_S
        while True:
            try:
                with self._lock:
                    return self._consumer.commit(self._reached)
            except RebalanceInProgressError:
                if time.monotonic() > deadline_s:
                    raise
                time.sleep(POLL_S)

    def close(self) -> None:
        self._stops.set()
        self._thread.join()
        self._consumer.close()


class AiokafkaMember:
    """aiokafka, on a loop in its own thread."""

    def __init__(self, bootstrap: str, topic: str, group: str, instance_id: str | None) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        try:
            self._consumer = self._run(self._start(bootstrap, topic, group, instance_id))
        except BaseException:
            self._end()
            raise

    @staticmethod
    async def _start(bootstrap: str, topic: str, group: str, instance_id: str | None) -> aiokafka.AIOKafkaConsumer:
        consumer = aiokafka.AIOKafkaConsumer(
            topic,
            bootstrap_servers=bootstrap,
            group_id=group,
            group_instance_id=instance_id,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=200,
        )
        await consumer.start()
        return consumer

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(DEADLINE_S)

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def poll(self) -> list[Place]:
        polled = self._run(self._consumer.getmany(timeout_ms=int(POLL_S * 1000)))
        return [(place.partition, record.offset) for place, records in polled.items() for record in records]

    def assignment(self) -> set[int]:
        return {place.partition for place in self._consumer.assignment()}

    def commit(self) -> None:
        self._run(self._consumer.commit())

    def close(self) -> None:
        try:
            self._run(self._consumer.stop())
        finally:
            self._end()


MEMBERS: dict[str, Callable[[str, str, str, str | None], Member]] = {
    Confluent.name: ConfluentMember,
    KafkaPython.name: KafkaPythonMember,
    Aiokafka.name: AiokafkaMember,
}


@contextmanager
def member(name: str, bootstrap: str, topic: str, group: str, instance_id: str | None = None) -> Iterator[Member]:
    """A member of a group, by the name of its client."""
    opened = MEMBERS[name](bootstrap, topic, group, instance_id)
    try:
        yield opened
    finally:
        opened.close()


def kcat_group(bootstrap: str, topic: str, group: str, count: int) -> list[Place]:
    """Reads `count` records with `kcat -G`, which commits and leaves at its end."""
    settings = {
        "broker.address.family": "v4",
        "auto.offset.reset": "earliest",
        "session.timeout.ms": str(SESSION_MS),
        "enable.partition.eof": "false",
    }
    options = [word for key, value in settings.items() for word in ("-X", f"{key}={value}")]
    command = ["kcat", "-b", bootstrap, *options, "-J", "-q", "-c", str(count), "-G", group, topic]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=True)
    records = [json.loads(line) for line in done.stdout.splitlines()]
    return [(record["partition"], record["offset"]) for record in records]


class Keeper(Protocol):
    """A client that administers groups. States are Kafka's names."""

    def groups(self) -> dict[str, str]:
        """Id and state of each group; the state is empty if the client does not return it."""

    def describe(self, group: str) -> tuple[str, int]:
        """State and number of members."""

    def committed(self, group: str, topic: str) -> dict[int, int]:
        """Returns the committed offsets of a topic."""

    def commit(self, group: str, topic: str, offsets: dict[int, int]) -> None:
        """Commits offsets from outside of the group."""

    def delete(self, group: str) -> None:
        """Deletes the group."""


class ConfluentKeeper:
    """confluent-kafka."""

    def __init__(self, bootstrap: str) -> None:
        self._admin = AdminClient({"bootstrap.servers": bootstrap, "broker.address.family": "v4"})

    def groups(self) -> dict[str, str]:
        found = self._admin.list_consumer_groups(request_timeout=DEADLINE_S).result(DEADLINE_S)
        assert found.errors == []
        return {group.group_id: str(group.state).rpartition(".")[2].replace("_", "").title() for group in found.valid}

    def describe(self, group: str) -> tuple[str, int]:
        found = self._admin.describe_consumer_groups([group], request_timeout=DEADLINE_S)[group].result(DEADLINE_S)
        return found.state.name.replace("_", "").title(), len(found.members)

    def coordinator(self, group: str) -> int:
        """Returns the broker that coordinates a group."""
        found = self._admin.describe_consumer_groups([group], request_timeout=DEADLINE_S)[group].result(DEADLINE_S)
        return found.coordinator.id

    def committed(self, group: str, topic: str) -> dict[int, int]:
        [future] = self._admin.list_consumer_group_offsets(
            [ConsumerGroupTopicPartitions(group)], request_timeout=DEADLINE_S
        ).values()
        places = future.result(DEADLINE_S).topic_partitions
        return {place.partition: place.offset for place in places if place.topic == topic}

    def commit(self, group: str, topic: str, offsets: dict[int, int]) -> None:
        places = [TopicPartition(topic, partition, offset) for partition, offset in offsets.items()]
        [future] = self._admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(group, places)]).values()
        for place in future.result(DEADLINE_S).topic_partitions:
            if place.error is not None:
                raise KafkaException(place.error)

    def delete(self, group: str) -> None:
        self._admin.delete_consumer_groups([group], request_timeout=DEADLINE_S)[group].result(DEADLINE_S)


class KafkaPythonKeeper:
    """kafka-python, which also deletes single offsets and removes members."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap

    def _open(self) -> Any:
        return closing(KafkaAdminClient(bootstrap_servers=self._bootstrap))

    def groups(self) -> dict[str, str]:
        with self._open() as admin:
            return {group["group_id"]: group["group_state"] for group in admin.list_groups()}

    def describe(self, group: str) -> tuple[str, int]:
        with self._open() as admin:
            [found] = admin.describe_groups([group]).values()
        return found["group_state"], len(found["members"])

    def committed(self, group: str, topic: str) -> dict[int, int]:
        with self._open() as admin:
            found = admin.list_group_offsets(group)
        found = found.get(group, found)
        return {place.partition: value.offset for place, value in found.items() if place.topic == topic}

    def commit(self, group: str, topic: str, offsets: dict[int, int]) -> None:
        with self._open() as admin:
            values = {
                KafkaPythonPlace(topic, number): OffsetAndMetadata(offset, "", -1) for number, offset in offsets.items()
            }
            # Unlike other clients' calls, this one is not repeated until the group has a coordinator.
            until(lambda: bool(admin.alter_group_offsets(group, values)), but=(CoordinatorNotAvailableError,))

    def delete_offsets(self, group: str, topic: str, partitions: list[int]) -> Any:
        """Deletes single offsets: the result of each, as returned by the client."""
        with self._open() as admin:
            return admin.delete_group_offsets(group, [KafkaPythonPlace(topic, number) for number in partitions])

    def delete(self, group: str) -> None:
        with self._open() as admin:
            outcome = dict(admin.delete_groups([group]))[group]
        if outcome != "OK":
            raise RuntimeError(outcome)


class AiokafkaKeeper:
    """aiokafka, which can only describe."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap

    def look(self, group: str) -> tuple[list[str], str, dict[Place, int]]:
        """Returns all groups, the state of one, and its offsets by partition."""
        return asyncio.run(self._look(group))

    async def _look(self, group: str) -> Any:
        admin = AIOKafkaAdminClient(bootstrap_servers=self._bootstrap)
        await admin.start()
        try:
            names = [row[0] for row in await admin.list_consumer_groups()]
            [described] = await admin.describe_consumer_groups([group])
            offsets = await admin.list_consumer_group_offsets(group)
        finally:
            await admin.close()
        return names, described.groups[0][2], {place.partition: value.offset for place, value in offsets.items()}


KEEPERS: dict[str, Callable[[str], Keeper]] = {Confluent.name: ConfluentKeeper, KafkaPython.name: KafkaPythonKeeper}
