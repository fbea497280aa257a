"""Data loss when a range is read: a partition that one broker does not know yet is not lost."""

from __future__ import annotations

import pytest

from lowtide.admin.settings import ClientSettings
from lowtide.pipeline import fetching
from lowtide.pipeline.cluster import Cluster, MissingTopicsError
from lowtide.pipeline.fetching import RangeReader
from lowtide.pipeline.leaders import Leader, Topic
from lowtide.pipeline.ranges import OffsetRange
from lowtide.pipeline.tasks import DataLossError, FetchSettings, PlannedRange
from lowtide.protocol.batch_building import build_batch
from lowtide.protocol.messages.fetch import FetchableTopicResponse, FetchResponse, PartitionData
from lowtide.protocol.types import ZERO_TOPIC_ID, TopicPartition

PLACE = TopicPartition("t", 0)
ROWS = [(1000, None, b"v", ())]


class LateCluster(Cluster):
    """Its brokers do not know the topic in the first `unknown` requests; then one has a record. It has no sockets."""

    def __init__(self, unknown: int) -> None:
        super().__init__(ClientSettings.of({"bootstrap.servers": "b:1", "retry.backoff.ms": "1", "retry.backoff.max.ms": "1"}))
        self.unknown = unknown
        self.leaders.topics["t"] = Topic(ZERO_TOPIC_ID, {0: Leader(1, 0)})

    def leader_of(self, partition, deadline_ms):
        if self.unknown:
            self.unknown -= 1
            raise MissingTopicsError("topic t doesn't exist", ["t"])
        return Leader(1, 0)

    def connection_to(self, broker_id, deadline_ms):
        return self

    def request(self, message, deadline_ms, newest):
        told = PartitionData(partition_index=0, error_code=0, high_watermark=1, aborted_transactions=None, records=build_batch(ROWS))
        return FetchResponse(responses=[FetchableTopicResponse(topic="t", partitions=[told])])


def rows(cluster: Cluster, **settings: object) -> int:
    planned = PlannedRange(OffsetRange(PLACE, 0, 1))
    return sum(columns.row_count for columns in RangeReader(cluster, FetchSettings(**settings), planned).columns())


def test_a_partition_that_a_broker_does_not_know_is_requested_again():
    cluster = LateCluster(unknown=3)
    assert rows(cluster) == 1
    assert cluster.unknown == 0


def test_a_partition_that_stays_unknown_is_lost(monkeypatch):
    monkeypatch.setattr(fetching, "MISSING_MS", 20)
    with pytest.raises(DataLossError, match=r"records of t-0 from offset 0 to 0 are gone before they were read \(topic t doesn't exist\)"):
        rows(LateCluster(unknown=10**9))
    assert rows(LateCluster(unknown=10**9), fail_on_data_loss=False) == 0
