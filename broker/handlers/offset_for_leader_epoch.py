"""OffsetForLeaderEpoch: v2-v4.

Behaviour: returns where a leader epoch ends in this log: the largest epoch at or below the requested one, and its end
offset (exclusive). The current epoch ends at the log end. Unknown epochs are -1, -1 without an error. Clients use this
to detect that a log was truncated.

Errors: UNKNOWN_TOPIC_OR_PARTITION, NOT_LEADER_OR_FOLLOWER, FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH,
KAFKA_STORAGE_ERROR.

KIPs: 101, 279, 320.
"""

from __future__ import annotations

from typing import Final

from lowtide.broker.context import BrokerContext
from lowtide.broker.guards import topics as guards
from lowtide.broker.network.routing.request_parts import Cut
from lowtide.broker.network.routing.routes import HandlerSpec
from lowtide.broker.partitions.replica_manager import ReplicaManager
from lowtide.broker.request_context import RequestContext
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)
from lowtide.replication import epoch_ends

CUT: Final = Cut(levels=(("topics", "topics"), ("partitions", "partitions")))


def handler(broker: BrokerContext) -> HandlerSpec:
    """Returns the handler."""

    def handle(request: OffsetForLeaderEpochRequest, _context: RequestContext) -> OffsetForLeaderEpochResponse:
        return OffsetForLeaderEpochResponse(
            throttle_time_ms=0,
            topics=[
                OffsetForLeaderTopicResult(
                    topic=topic.topic, partitions=[_end(broker.replicas, topic.topic, row) for row in topic.partitions]
                )
                for topic in request.topics
            ],
        )

    return HandlerSpec(
        key=ApiKey.OFFSET_FOR_LEADER_EPOCH,
        guard=guards.offset_for_leader_epoch,
        handle=handle,
        cut=CUT,
        between_brokers=True,
    )


def _end(replicas: ReplicaManager, topic: str, row: OffsetForLeaderPartition) -> EpochEndOffset:
    partition = replicas.find(topic, row.partition)
    error = partition if isinstance(partition, ErrorCode) else partition.check_leadership(row.current_leader_epoch)
    if isinstance(partition, ErrorCode) or error != ErrorCode.NONE:
        return EpochEndOffset(error_code=error, partition=row.partition)
    end = epoch_ends.end_offset_for_epoch(partition, row.leader_epoch)
    return EpochEndOffset(
        error_code=ErrorCode.NONE, partition=row.partition, leader_epoch=end.leader_epoch, end_offset=end.end_offset
    )
