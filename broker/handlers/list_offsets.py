"""ListOffsets: v1-v11.

Behaviour: for each partition the offset that belongs to a timestamp, or to one of the special ones: -1 latest (the last stable offset
for read_committed), -2 earliest (the log start offset), -3 the record with the largest timestamp, -4 earliest local, -5 latest tiered,
-6 earliest pending upload. A timestamp answers the first record at or after it; records below the log start are never an answer.
Nothing found is offset -1 without an error.

Version notes: -3 since v7, -4 since v8, -5 since v9, -6 since v11. Without tiered storage -4 is the log start, -5 and -6 are unknown.

Errors: UNSUPPORTED_VERSION for a special timestamp that the version doesn't know, INVALID_REQUEST for a partition named twice or an
unknown isolation level, UNKNOWN_TOPIC_OR_PARTITION, NOT_LEADER_OR_FOLLOWER, FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH,
KAFKA_STORAGE_ERROR.

KIPs: 79, 98, 320, 405, 734, 1005, 1023.
"""

from __future__ import annotations

from collections import Counter

from lowtide.broker.connection import RequestContext
from lowtide.broker.context import BrokerContext
from lowtide.broker.dispatcher import HandlerSpec
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from lowtide.replication.partition import Partition
from lowtide.storage.errors import StorageError

LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3
EARLIEST_LOCAL = -4
LATEST_TIERED = -5
EARLIEST_PENDING_UPLOAD = -6

_SINCE = {LATEST: 0, EARLIEST: 0, MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9, EARLIEST_PENDING_UPLOAD: 11}
_READ_COMMITTED = 1


def handler(broker: BrokerContext) -> HandlerSpec:
    """The handler over a broker's state."""

    def answer(topic: str, row: ListOffsetsPartition, version: int, isolation_level: int) -> ListOffsetsPartitionResponse:
        if isolation_level not in (0, _READ_COMMITTED):
            return _failed(row, ErrorCode.INVALID_REQUEST)
        if row.timestamp < 0 and version < _SINCE.get(row.timestamp, version + 1):
            return _failed(row, ErrorCode.UNSUPPORTED_VERSION)
        partition = broker.replicas.find(topic, row.partition_index)
        error = partition if isinstance(partition, ErrorCode) else partition.check_leadership(row.current_leader_epoch)
        if isinstance(partition, ErrorCode) or error != ErrorCode.NONE:
            return _failed(row, error)
        try:
            return _look_up(partition, row, read_committed=isolation_level == _READ_COMMITTED)
        except StorageError as storage_error:
            broker.log.error("offsets could not be read", partition=str(partition.topic_partition), error=str(storage_error))
            return _failed(row, ErrorCode.KAFKA_STORAGE_ERROR)

    def handle(request: ListOffsetsRequest, context: RequestContext) -> ListOffsetsResponse:
        named = Counter((topic.name, row.partition_index) for topic in request.topics for row in topic.partitions)
        topics = []
        for topic in request.topics:
            rows = []
            for row in {row.partition_index: row for row in topic.partitions}.values():
                if named[(topic.name, row.partition_index)] > 1:
                    rows.append(_failed(row, ErrorCode.INVALID_REQUEST))
                else:
                    rows.append(answer(topic.name, row, context.api_version, request.isolation_level))
            topics.append(ListOffsetsTopicResponse(name=topic.name, partitions=rows))
        return ListOffsetsResponse(throttle_time_ms=0, topics=topics)

    return HandlerSpec(key=ApiKey.LIST_OFFSETS, handle=handle)


def _look_up(partition: Partition, row: ListOffsetsPartition, *, read_committed: bool) -> ListOffsetsPartitionResponse:
    log = partition.log
    end_offset = log.last_stable_offset if read_committed else log.high_watermark
    if row.timestamp == LATEST:
        return _found(row, -1, end_offset, partition.leader_epoch)
    if row.timestamp in (EARLIEST, EARLIEST_LOCAL):
        return _found(row, -1, log.log_start_offset, log.leader_epochs.epoch_at(log.log_start_offset))
    if row.timestamp in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
        return _found(row, -1, -1, -1)
    found = log.offset_of_max_timestamp() if row.timestamp == MAX_TIMESTAMP else log.offset_for_timestamp(row.timestamp)
    if found is None or found.offset >= end_offset:
        return _found(row, -1, -1, -1)
    return _found(row, found.timestamp, found.offset, found.leader_epoch)


def _found(row: ListOffsetsPartition, timestamp: int, offset: int, leader_epoch: int) -> ListOffsetsPartitionResponse:
    return ListOffsetsPartitionResponse(
        partition_index=row.partition_index, error_code=ErrorCode.NONE, timestamp=timestamp, offset=offset, leader_epoch=leader_epoch
    )


def _failed(row: ListOffsetsPartition, error: int) -> ListOffsetsPartitionResponse:
    return ListOffsetsPartitionResponse(partition_index=row.partition_index, error_code=error, timestamp=-1, offset=-1, leader_epoch=-1)
