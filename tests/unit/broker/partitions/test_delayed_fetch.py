"""A fetch that waits: events that end the wait before its deadline."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from lowtide.broker.partitions.fetch.fetch_handler import DelayedFetch
from lowtide.broker.partitions.fetch.fetch_reader import FetchReader
from lowtide.broker.partitions.fetch.fetch_session import FetchPlan
from lowtide.broker.partitions.fetch.fetch_targets import FetchRules, FetchTarget
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.types import ZERO_TOPIC_ID, TopicPartition
from lowtide.replication.topic_traffic import TrafficTable
from lowtide.storage.log.segments.segment_list import NOTHING_READ

RULES = FetchRules(
    api_version=11, read_committed=False, is_follower=False, minimum_bytes=1, maximum_bytes=100, maximum_wait_ms=100
)


def target(topic: str) -> FetchTarget:
    return FetchTarget(
        topic=topic,
        topic_id=ZERO_TOPIC_ID,
        partition=0,
        fetch_offset=5,
        partition_max_bytes=100,
        current_leader_epoch=-1,
        last_fetched_epoch=-1,
    )


class Replicas:
    """The part of the replica manager that a waiting fetch uses: empty partitions, by topic, until they are deleted."""

    def __init__(self, *topics: str) -> None:
        offsets = {"log_end_offset": 5, "high_watermark": 5, "last_stable_offset": 5, "log_start_offset": 0}
        self.traffic = TrafficTable()
        log = SimpleNamespace(**offsets, read=lambda *_, **__: NOTHING_READ, transactions=SimpleNamespace(any=False))
        self.partitions = {
            topic: SimpleNamespace(
                topic_partition=TopicPartition(topic, 0),
                log=log,
                leadership=None,
                is_leader=True,
                leader_epoch=0,
                check_leadership=lambda _epoch: ErrorCode.NONE,
                traffic=self.traffic.of(TopicPartition(topic, 0)),
            )
            for topic in topics
        }
        self.image = None

    def find(self, topic: str, _partition: int) -> Any:
        return self.partitions.get(topic, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


def waiting(replicas: Replicas, *topics: str) -> DelayedFetch:
    """A fetch that has begun to wait."""
    reader = FetchReader(replicas, list)
    targets = [target(topic) for topic in topics]
    fetch = DelayedFetch(reader, replicas, FetchPlan(targets=targets), targets, RULES, 100)
    assert [key.topic for key, _ in fetch.thresholds()] == [topic for topic in topics if topic in replicas.partitions]
    return fetch


@pytest.mark.parametrize("topics", [("gone",), ("gone", "other"), ("other", "gone")])
def test_a_partition_that_is_gone_ends_the_wait(topics: tuple[str, ...]) -> None:
    """Case C of Kafka's DelayedFetch."""
    replicas = Replicas("gone", "other")
    fetch = waiting(replicas, *topics)
    assert not fetch.try_complete()
    del replicas.partitions["gone"]
    assert fetch.try_complete()
    assert fetch.pending.done


def test_a_partition_that_never_existed_ends_no_wait() -> None:
    """A missing partition is answered with the others: as in Kafka, the fetch waits only for the others."""
    fetch = waiting(Replicas("other"), "never", "other")
    assert not fetch.try_complete()
