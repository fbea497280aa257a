"""Reading a range follows its leader, and is not misled by a broker that does not know a topic yet."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from lowtide.admin.settings import ClientSettings
from lowtide.pipeline.cluster import BlockingCluster
from lowtide.pipeline.fetching import RangeReader
from lowtide.pipeline.ranges import ReadRange
from lowtide.pipeline.tasks import FetchSettings, PlannedRange
from lowtide.protocol.types import TopicPartition

pytestmark = pytest.mark.slow

LIMIT_S = 120.0
ROWS = 2000


@pytest.fixture
def cluster(lowtide_cluster: SimpleNamespace) -> Iterator[BlockingCluster]:
    made = BlockingCluster(ClientSettings.of({"bootstrap.servers": lowtide_cluster.bootstrap}))
    yield made
    made.close()


def test_reading_a_range_continues_when_its_leader_is_killed(lowtide_cluster, lowtide_topic, cluster):
    """Metadata name the dead leader until the others elect a new one."""
    admin = AdminClient({"bootstrap.servers": lowtide_cluster.bootstrap})
    admin.create_topics([NewTopic(lowtide_topic, num_partitions=1, replication_factor=3)])[lowtide_topic].result(
        LIMIT_S
    )
    producer = Producer({"bootstrap.servers": lowtide_cluster.bootstrap, "batch.size": 10_000})
    for number in range(ROWS):
        producer.produce(lowtide_topic, f"{number} ".ljust(500, "x"), partition=0)
    assert producer.flush(LIMIT_S) == 0
    partition = TopicPartition(lowtide_topic, 0)
    planned = PlannedRange(ReadRange(partition, 0, ROWS))
    read = RangeReader(
        cluster, FetchSettings(fetch_bytes=100_000, poll_timeout_ms=int(LIMIT_S * 1000)), planned
    ).columns()
    rows = next(read).row_count
    leader = cluster.leader_of(partition, cluster.deadline()).broker_id
    lowtide_cluster.kill_broker(leader)
    try:
        rows += sum(columns.row_count for columns in read)
    finally:
        lowtide_cluster.start_broker(leader)
    assert rows == ROWS
    assert cluster.leader_of(partition, cluster.deadline()).broker_id != leader
