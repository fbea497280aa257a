"""Reads of a range of offsets.

A partition that one broker does not know yet is not lost, and the next answer is requested early.
"""

from __future__ import annotations

import struct

import pytest

from lowtide.admin.errors import ConnectionFailedError
from lowtide.admin.settings import ClientSettings
from lowtide.pipeline import fetching
from lowtide.pipeline.cluster import BlockingCluster, MissingTopicsError
from lowtide.pipeline.fetching import RangeReader
from lowtide.pipeline.leaders import Leader, Topic
from lowtide.pipeline.ranges import ReadRange
from lowtide.pipeline.tasks import DataLossError, FetchSettings, PlannedRange
from lowtide.protocol.batch_building import build_batch
from lowtide.protocol.messages.fetch import FetchableTopicResponse, FetchResponse, PartitionData
from lowtide.protocol.types import ZERO_TOPIC_ID, TopicPartition

PLACE = TopicPartition("t", 0)
ROWS = [(1000, None, b"v", ())]


class LateCluster(BlockingCluster):
    """Its brokers do not know the topic in the first `unknown` requests; then one has a record. It has no sockets."""

    def __init__(self, unknown: int) -> None:
        super().__init__(
            ClientSettings.of({"bootstrap.servers": "b:1", "retry.backoff.ms": "1", "retry.backoff.max.ms": "1"})
        )
        self.unknown = unknown
        self.leaders.topics["t"] = Topic(ZERO_TOPIC_ID, {0: Leader(1, 0)})

    def leader_of(self, partition, deadline_ms):
        if self.unknown:
            self.unknown -= 1
            raise MissingTopicsError("topic t does not exist", ["t"])
        return Leader(1, 0)

    def connection_to(self, broker_id, deadline_ms):
        return self

    waiting_count = 0

    def send(self, message, deadline_ms, newest):
        pass

    def receive(self, deadline_ms):
        row = PartitionData(
            partition_index=0, error_code=0, high_watermark=1, aborted_transactions=None, records=build_batch(ROWS)
        )
        return FetchResponse(responses=[FetchableTopicResponse(topic="t", partitions=[row])])


def rows(cluster: BlockingCluster, **settings: object) -> int:
    planned = PlannedRange(ReadRange(PLACE, 0, 1))
    return sum([columns.row_count for columns in RangeReader(cluster, FetchSettings(**settings), planned).columns()])  # type: ignore[misc]


class ScriptedConnection:
    """Answers each request with one record, and counts the answers that were not received."""

    def __init__(self) -> None:
        self.sent: list[int] = []
        """The offsets of all requests."""
        self.waiting: list[int] = []
        self.closed = False
        self.loses = 0
        """So many answers do not come."""

    @property
    def waiting_count(self) -> int:
        return len(self.waiting)

    def send(self, message, deadline_ms, newest):
        assert not self.waiting, "a Fetch has its connection to itself"
        (topic,) = message.topics
        self.sent.append(topic.partitions[0].fetch_offset)
        self.waiting.append(self.sent[-1])

    def receive(self, deadline_ms):
        if self.closed or self.loses:
            self.loses -= not self.closed
            self.close()
            raise ConnectionFailedError("it closed the connection", was_sent=True)
        batch = bytearray(build_batch([(1000, None, b"v", ())]))
        struct.pack_into(">q", batch, 0, self.waiting.pop())  # The base offset, which the CRC does not cover.
        row = PartitionData(
            partition_index=0, error_code=0, high_watermark=9, aborted_transactions=None, records=bytes(batch)
        )
        return FetchResponse(responses=[FetchableTopicResponse(topic="t", partitions=[row])])

    def close(self) -> None:
        self.closed = True


class OneBroker(BlockingCluster):
    """A cluster of one broker, to which a closed connection is opened again. It has no sockets."""

    def __init__(self) -> None:
        super().__init__(
            ClientSettings.of({"bootstrap.servers": "b:1", "retry.backoff.ms": "1", "retry.backoff.max.ms": "1"})
        )
        self.leaders.topics["t"] = Topic(ZERO_TOPIC_ID, {0: Leader(1, 0)})
        self.opened = [ScriptedConnection()]

    def leader_of(self, partition, deadline_ms):
        return Leader(1, 0)

    def connection_to(self, broker_id, deadline_ms):
        if self.opened[-1].closed:
            self.opened.append(ScriptedConnection())
        return self.opened[-1]

    def read(self, until: int):
        return RangeReader(self, FetchSettings(), PlannedRange(ReadRange(PLACE, 0, until))).columns()


def offset_of(columns) -> int:
    (offset,) = struct.unpack("=q", columns.offsets)
    return offset


def test_the_next_answer_is_requested_while_the_caller_has_the_last_one():
    cluster = OneBroker()
    read = cluster.read(3)
    assert (offset_of(next(read)), cluster.opened[0].sent) == (0, [0, 1])
    assert (offset_of(next(read)), cluster.opened[0].sent) == (1, [0, 1, 2])
    assert [offset_of(columns) for columns in read] == [2]
    assert cluster.opened[0].sent == [0, 1, 2], "nothing is requested behind the end of the range"
    assert (len(cluster.opened), cluster.opened[0].closed) == (1, False)


def test_an_early_request_whose_answer_is_lost_is_repeated():
    cluster = OneBroker()
    read = cluster.read(3)
    rows = [offset_of(next(read))]
    cluster.opened[0].loses = 1
    rows += [offset_of(columns) for columns in read]
    assert rows == [0, 1, 2]
    assert [connection.sent for connection in cluster.opened] == [[0, 1], [1, 2]]


def test_an_early_request_that_can_not_be_sent_is_repeated():
    cluster = OneBroker()
    failing = iter([ConnectionFailedError("connection refused", was_sent=False)])
    send = ScriptedConnection.send

    def send_but_once(message, deadline_ms, newest):
        if message.topics[0].partitions[0].fetch_offset == 1 and (error := next(failing, None)) is not None:
            raise error
        send(cluster.opened[0], message, deadline_ms, newest)

    cluster.opened[0].send = send_but_once
    assert [offset_of(columns) for columns in cluster.read(2)] == [0, 1]


def test_a_caller_that_stops_early_leaves_no_answer_to_the_next_reader():
    cluster = OneBroker()
    read = cluster.read(3)
    next(read)
    read.close()
    assert cluster.opened[0].closed
    assert [offset_of(columns) for columns in cluster.read(2)] == [0, 1]


def test_a_reader_does_not_take_the_answer_that_another_one_has_requested():
    cluster = OneBroker()
    first, second = cluster.read(3), cluster.read(3)
    rows = [(offset_of(next(first)), offset_of(next(second))) for _ in range(3)]
    assert rows == [(0, 0), (1, 1), (2, 2)]


def test_a_partition_that_a_broker_does_not_know_is_requested_again():
    cluster = LateCluster(unknown=3)
    assert rows(cluster) == 1
    assert cluster.unknown == 0


def test_a_partition_that_stays_unknown_is_lost(monkeypatch):
    monkeypatch.setattr(fetching, "MISSING_MS", 20)
    with pytest.raises(
        DataLossError,
        match=r"records of t-0 from offset 0 to 0 were deleted before they were read \(topic t does not exist\)",
    ):
        rows(LateCluster(unknown=10**9))
    assert rows(LateCluster(unknown=10**9), fail_on_data_loss=False) == 0
