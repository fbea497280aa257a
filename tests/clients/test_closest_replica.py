"""Consumers that read at a follower in their own rack (KIP-392) while records are deleted: librdkafka.

A follower without a delete refuses, one with it returns its log start. Neither may make a consumer alternate
between brokers, nor lose its position.
"""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from lowtide.testing.cluster import LowtideCluster

from .driver import DEADLINE_S, until

LEADER, FOLLOWER = 1, 2
RACKS = ("north", "east", "south")
TRIMS = 25
AHEAD = 5
"""The minimum number of records that the consumer has not read at a delete."""
SWITCHES_MAX = 4
"""Switches to the leader and back: one for each delete that coincides with a fetch, and a few at the start."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[LowtideCluster]:
    selector = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
    # Leaders are to stay where they are, however long a busy machine holds the brokers up.
    config = {
        "replica.selector.class": selector,
        "broker.session.timeout.ms": "120000",
        "replica.lag.time.max.ms": "120000",
    }
    with LowtideCluster(brokers=3, racks=RACKS, config=config) as running:
        yield running


class RackReader:
    """A consumer in the follower's rack, and the brokers that it fetched from."""

    def __init__(self, bootstrap: str, topic: str, reset: str) -> None:
        self.fetched_from: list[int] = []
        self.next_offset = -1
        self.faults: list[str] = []
        self._topic = topic
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "broker.address.family": "v4",
                "group.id": uuid.uuid4().hex,
                "enable.auto.commit": False,
                "auto.offset.reset": reset,
                "client.rack": RACKS[FOLLOWER - 1],
                "fetch.wait.max.ms": 20,
                "fetch.error.backoff.ms": 20,
                "statistics.interval.ms": 20,
                "stats_cb": self._on_statistics,
            }
        )
        self._consumer.assign([TopicPartition(topic, 0, 0)])

    def _on_statistics(self, text: str) -> None:
        partition = json.loads(text)["topics"].get(self._topic, {}).get("partitions", {}).get("0")
        if partition is not None and partition["broker"] > 0 and partition["fetch_state"] == "active":
            self.fetched_from.append(partition["broker"])
            self.next_offset = partition["next_offset"]

    @property
    def switches(self) -> int:
        """The number of changes of the broker."""
        return sum(one != other for one, other in zip(self.fetched_from, self.fetched_from[1:], strict=False))

    def poll(self, timeout_s: float = 0.1) -> int | None:
        """Returns the offset of the next record."""
        message = self._consumer.poll(timeout_s)
        if message is None:
            return None
        error = message.error()
        if error is None:
            return message.offset()
        if error.code() != KafkaError._UNSUPPORTED_FEATURE:
            self.faults.append(error.str())
        return None

    def until_at(self, broker_id: int) -> None:
        until(lambda: self.poll() is None and self.fetched_from[-1:] == [broker_id])

    def close(self) -> None:
        self._consumer.close()


@pytest.fixture
def made(cluster: LowtideCluster) -> Iterator[Any]:
    """Creates a topic that broker 1 leads, with records."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "broker.address.family": "v4"})
    producer = Producer(
        {"bootstrap.servers": cluster.bootstrap, "broker.address.family": "v4", "acks": "all", "linger.ms": 0}
    )
    readers: list[RackReader] = []

    class Made:
        topic = f"closest-{uuid.uuid4().hex[:8]}"

        def produce(self, count: int) -> None:
            for _ in range(count):
                producer.produce(self.topic, b"record", partition=0)
            assert producer.flush(DEADLINE_S) == 0

        def delete(self, offset: int) -> None:
            place = TopicPartition(self.topic, 0, offset)
            assert admin.delete_records([place])[place].result(DEADLINE_S).low_watermark == offset

        def reader(self, reset: str) -> RackReader:
            readers.append(RackReader(cluster.bootstrap, self.topic, reset))
            return readers[-1]

    admin.create_topics([NewTopic(Made.topic, 1, replica_assignment=[[LEADER, FOLLOWER, 3]])])[Made.topic].result(
        DEADLINE_S
    )
    until(lambda: _isr(admin, Made.topic) == {1, 2, 3})
    yield Made()
    for reader in readers:
        reader.close()


def _isr(admin: AdminClient, topic: str) -> set[int]:
    partitions = admin.list_topics(topic, DEADLINE_S).topics[topic].partitions
    return set(partitions[0].isrs) if partitions else set()


def test_deletes_behind_a_consumer_do_not_move_it(made: Any) -> None:
    """It reads every record, at the follower, although a reset would move it to the end."""
    made.produce(AHEAD)
    reader = made.reader("latest")
    found: list[int] = []

    def read_to(count: int) -> None:
        until(lambda: _note(found, reader.poll()) and len(found) >= count)

    read_to(AHEAD)
    reader.until_at(FOLLOWER)
    ended = threading.Event()
    deleting = threading.Thread(target=_trim_behind, args=(made, found, ended))
    deleting.start()
    try:
        while not ended.is_set():
            made.produce(AHEAD)
            read_to(len(found) + AHEAD)
    finally:
        deleting.join()
    assert found == list(range(len(found))), "each record once, in order"
    assert reader.faults == []
    reader.until_at(FOLLOWER)
    assert reader.switches <= 2 * TRIMS + SWITCHES_MAX, reader.fetched_from


def _note(found: list[int], offset: int | None) -> bool:
    if offset is not None:
        found.append(offset)
    return True


def _trim_behind(made: Any, found: list[int], ended: threading.Event) -> None:
    try:
        for _ in range(TRIMS):
            made.delete(len(found))
            time.sleep(0.01)
    finally:
        ended.set()


@pytest.mark.parametrize(("reset", "next_offset"), [("earliest", 30), ("latest", 40)])
def test_a_delete_ahead_of_a_consumer_resets_it_by_its_policy_and_once(made: Any, reset: str, next_offset: int) -> None:
    """The records that it would read next are deleted on all replicas; the leader reports that once."""
    made.produce(10)
    reader = made.reader(reset)
    found: list[int] = []
    until(lambda: _note(found, reader.poll()) and len(found) == 10)
    reader.until_at(FOLLOWER)
    paused = reader.switches
    reader._consumer.pause([TopicPartition(made.topic, 0)])
    made.produce(30)
    made.delete(30)
    reader._consumer.resume([TopicPartition(made.topic, 0)])
    if reset == "latest":
        until(lambda: reader.poll(0.02) is None and reader.next_offset == 40)
        reader.until_at(FOLLOWER)
        made.produce(1)
    until(lambda: _note(found, reader.poll()) and len(found) > 10)
    assert found[10] == next_offset
    reader.until_at(FOLLOWER)
    assert reader.switches - paused <= SWITCHES_MAX, reader.fetched_from
    assert reader.faults == []
