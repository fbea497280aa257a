"""The requests of a follower to its leader besides Fetch: ListOffsets and OffsetForLeaderEpoch, of many partitions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from lowtide.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from lowtide.protocol.types import BrokerId, LeaderEpoch, Offset, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from lowtide.broker.network.peer_client import PeerClient
    from lowtide.replication.follower import FollowedPartition

LIST_OFFSETS_VERSION: Final = 7
EPOCH_VERSION: Final = 4
LATEST, EARLIEST = -1, -2

Row = TypeVar("Row")


class LeaderRange(NamedTuple):
    """The leader's log start and log end (exclusive)."""

    start: Offset
    end: Offset


class LeaderEpochEnd(NamedTuple):
    """The leader's largest epoch up to the requested one, and its end (exclusive); -1 if there is none."""

    leader_epoch: LeaderEpoch
    end_offset: Offset


async def ask_ranges(
    client: PeerClient, broker_id: BrokerId, asked: list[FollowedPartition], timeout_ms: int
) -> dict[TopicPartition, LeaderRange | ErrorCode]:
    """Returns the leader's range by partition, without unanswered partitions. Errors: PeerError.

    With our `broker_id` we get the log end; a consumer would get the high watermark.
    """
    ends = await _list_offsets(client, broker_id, asked, LATEST, timeout_ms)
    starts = await _list_offsets(client, broker_id, asked, EARLIEST, timeout_ms)
    found: dict[TopicPartition, LeaderRange | ErrorCode] = {}
    for key in ends.keys() & starts.keys():
        (end_error, end), (start_error, start) = ends[key], starts[key]
        error = end_error or start_error
        found[key] = ErrorCode(error) if error != ErrorCode.NONE else LeaderRange(start, end)
    return found


async def _list_offsets(
    client: PeerClient, broker_id: BrokerId, asked: list[FollowedPartition], timestamp: int, timeout_ms: int
) -> dict[TopicPartition, tuple[int, Offset]]:
    def row(following: FollowedPartition) -> ListOffsetsPartition:
        number = following.key.partition
        return ListOffsetsPartition(
            partition_index=number, current_leader_epoch=following.leader_epoch, timestamp=timestamp
        )

    topics = [ListOffsetsTopic(name=name, partitions=rows) for name, rows in _by_topic(asked, row).items()]
    request = ListOffsetsRequest(replica_id=broker_id, topics=topics)
    answer = await client.request(ApiKey.LIST_OFFSETS, LIST_OFFSETS_VERSION, request, timeout_ms)
    return {
        TopicPartition(topic.name, row.partition_index): (row.error_code, row.offset)
        for topic in answer.topics
        for row in topic.partitions
    }


async def ask_epochs(
    client: PeerClient, broker_id: BrokerId, asked: list[FollowedPartition], timeout_ms: int
) -> dict[TopicPartition, LeaderEpochEnd | ErrorCode]:
    """Returns the leader's end of each log's last epoch, without unanswered partitions. Errors: PeerError."""

    def row(following: FollowedPartition) -> OffsetForLeaderPartition:
        latest = following.log.leader_epochs.latest
        return OffsetForLeaderPartition(
            partition=following.key.partition, current_leader_epoch=following.leader_epoch, leader_epoch=latest
        )

    topics = [OffsetForLeaderTopic(topic=name, partitions=rows) for name, rows in _by_topic(asked, row).items()]
    request = OffsetForLeaderEpochRequest(replica_id=broker_id, topics=topics)
    answer = await client.request(ApiKey.OFFSET_FOR_LEADER_EPOCH, EPOCH_VERSION, request, timeout_ms)
    return {
        TopicPartition(topic.topic, row.partition): ErrorCode(row.error_code)
        if row.error_code != ErrorCode.NONE
        else LeaderEpochEnd(row.leader_epoch, row.end_offset)
        for topic in answer.topics
        for row in topic.partitions
    }


def _by_topic(asked: Iterable[FollowedPartition], row_of: Callable[[FollowedPartition], Row]) -> dict[str, list[Row]]:
    topics: dict[str, list[Row]] = {}
    for following in asked:
        topics.setdefault(following.key.topic, []).append(row_of(following))
    return topics
