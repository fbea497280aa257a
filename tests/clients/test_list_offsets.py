"""ListOffsets for administrators: earliest, latest, largest time, a time, by isolation level."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from types import SimpleNamespace

import kafka.errors
import pytest
from confluent_kafka import IsolationLevel, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from .driver import DEADLINE_S, Driver, OutgoingRecord
from .driver_kafka_python import DEADLINE_MS, KafkaAdminClient
from .driver_kafka_python import TopicPartition as KafkaPythonPlace

BASE_TIME_MS = 1_700_000_000_000
SECONDS = [0, 1, 5, 2, 5, 3]
"""The timestamps of the records; the largest occurs twice, and the first of the two is the answer."""

SPECIAL = {"earliest": -2, "latest": -1, "max timestamp": -3}
Ask = Callable[..., tuple[int, int]]
"""(topic, a special offset or a time, committed=) -> (offset, timestamp); -1 if there is none."""


def by_confluent(bootstrap: str, topic: str, wanted: str | int, committed: bool) -> tuple[int, int]:
    specs = {"earliest": OffsetSpec.earliest, "latest": OffsetSpec.latest, "max timestamp": OffsetSpec.max_timestamp}
    spec = specs[wanted]() if isinstance(wanted, str) else OffsetSpec.for_timestamp(wanted)
    level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
    admin = AdminClient({"bootstrap.servers": bootstrap, "broker.address.family": "v4"})
    [future] = admin.list_offsets(
        {TopicPartition(topic, 0): spec}, isolation_level=level, request_timeout=DEADLINE_S
    ).values()
    found = future.result(DEADLINE_S)
    return found.offset, found.timestamp


def by_kafka_python(bootstrap: str, topic: str, wanted: str | int, committed: bool) -> tuple[int, int]:
    timestamp = SPECIAL[wanted] if isinstance(wanted, str) else wanted
    with closing(KafkaAdminClient(bootstrap_servers=bootstrap)) as admin:
        [found] = admin.list_partition_offsets(
            {KafkaPythonPlace(topic, 0): timestamp}, isolation_level=int(committed), timeout_ms=DEADLINE_MS
        ).values()
    return found.offset, found.timestamp


@pytest.fixture(params=[by_confluent, by_kafka_python])
def ask(request: pytest.FixtureRequest, lowtide: SimpleNamespace) -> Ask:
    """Request one offset of partition 0; kcat and aiokafka do not support it."""

    def ask(topic: str, wanted: str | int, *, committed: bool = False) -> tuple[int, int]:
        return request.param(lowtide.bootstrap, topic, wanted, committed)

    return ask


@pytest.mark.parametrize("committed", [False, True], ids=["uncommitted", "committed"])
def test_every_offset_is_returned_with_its_time(ask: Ask, other: Driver, topic: str, committed: bool) -> None:
    """Two batches, one of them compressed; the largest time is inside of the first."""
    records = [OutgoingRecord(b"k", b"v", BASE_TIME_MS + second * 1000) for second in SECONDS]
    other.produce(topic, records[:4], codec="zstd")
    other.produce(topic, records[4:])
    assert ask(topic, "earliest", committed=committed)[0] == 0
    assert ask(topic, "latest", committed=committed)[0] == 6
    assert ask(topic, "max timestamp", committed=committed) == (2, BASE_TIME_MS + 5000)
    assert ask(topic, BASE_TIME_MS + 1001, committed=committed) == (2, BASE_TIME_MS + 5000)
    assert ask(topic, BASE_TIME_MS + 5001, committed=committed)[0] == -1


def test_an_empty_partition_has_no_largest_time(ask: Ask, topic: str) -> None:
    assert ask(topic, "max timestamp") == (-1, -1)
    assert ask(topic, "earliest")[0] == ask(topic, "latest")[0] == 0


def test_what_was_deleted_is_not_the_earliest(ask: Ask, other: Driver, topic: str) -> None:
    other.produce(topic, [OutgoingRecord(b"k", b"v", BASE_TIME_MS + n * 1000) for n in range(6)])
    other.delete_records(topic, {0: 4})
    assert ask(topic, "earliest")[0] == 4
    assert ask(topic, BASE_TIME_MS) == (4, BASE_TIME_MS + 4000)
    assert ask(topic, "max timestamp") == (5, BASE_TIME_MS + 5000)


def test_a_missing_topic_is_an_error(ask: Ask) -> None:
    with pytest.raises(
        (KafkaException, kafka.errors.UnknownTopicOrPartitionError), match=r"(?i)unknown.?topic|no leaders found"
    ):
        ask("no-such-topic", "latest")
