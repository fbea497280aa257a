"""ListOffsets: v1-v11.

Behaviour: returns, for each partition, the offset of a timestamp or of a special one: -1 latest (the last stable offset
with read_committed), -2 earliest (the log start offset), -3 the record with the largest timestamp, -4 earliest local,
-5 latest tiered, -6 earliest pending upload. A timestamp returns the first record at or after it. No offset is below
the log start, unlike Kafka's for -3. If nothing is found, the offset is -1 without an error. Latest is the log end for
a replica, and the high watermark for a consumer. A newly elected leader may not know yet what is committed, and returns
an error rather than an offset below an earlier one.

Version notes: -3 since v7, -4 since v8, -5 since v9, -6 since v11. Without tiered storage -4 is the log start, -5 and
-6 are unknown.

Errors: UNSUPPORTED_VERSION for a special timestamp that the version doesn't have, INVALID_REQUEST for a partition that
is listed twice or an unknown isolation level, OFFSET_NOT_AVAILABLE (LEADER_NOT_AVAILABLE before v5) from a new leader,
UNKNOWN_TOPIC_OR_PARTITION, NOT_LEADER_OR_FOLLOWER, FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH, KAFKA_STORAGE_ERROR.

KIPs: 79, 98, 320, 405, 734, 1005, 1023.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Final, NamedTuple, TypeAlias

from lowtide.broker.context import BrokerContext
from lowtide.broker.guards import topics as guards
from lowtide.broker.network.routing.request_parts import Cut
from lowtide.broker.network.routing.routes import HandlerSpec
from lowtide.broker.partitions.timestamp_search import LongRow, Progress, TimestampSearches, Unfinished
from lowtide.broker.pending import Answer
from lowtide.broker.request_context import RequestContext
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from lowtide.protocol.types import Offset
from lowtide.replication.partition import Partition
from lowtide.storage.errors import StorageError
from lowtide.storage.log.timestamps import Found, LongSearch, SearchOn, search_max_timestamp, search_timestamp

LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3
EARLIEST_LOCAL = -4
LATEST_TIERED = -5
EARLIEST_PENDING_UPLOAD = -6

_SINCE = {LATEST: 0, EARLIEST: 0, MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9, EARLIEST_PENDING_UPLOAD: 11}
_READ_COMMITTED = 1
_CONSUMER, _DEBUGGER = -1, -2
_OFFSET_NOT_AVAILABLE_SINCE = 5

CUT: Final = Cut(levels=(("topics", "topics"), ("partitions", "partitions")), names=("name", "partition_index"))


class _Bounds(NamedTuple):
    """An answer lies below `end_offset` (exclusive); `not_yet` is answered where a later end might change it."""

    end_offset: Offset
    not_yet: ErrorCode


RowOrSearch: TypeAlias = ListOffsetsPartitionResponse | Unfinished


def handler(broker: BrokerContext) -> HandlerSpec:
    """Returns the handler."""

    def answer(
        topic: str, row: ListOffsetsPartition, version: int, request: ListOffsetsRequest, progress: Progress
    ) -> RowOrSearch:
        isolation_level = request.isolation_level
        if isolation_level not in (0, _READ_COMMITTED):
            return _failed(row, ErrorCode.INVALID_REQUEST)
        if row.timestamp < 0 and version < _SINCE.get(row.timestamp, version + 1):
            return _failed(row, ErrorCode.UNSUPPORTED_VERSION)
        partition = broker.replicas.find(topic, row.partition_index)
        error = partition if isinstance(partition, ErrorCode) else partition.check_leadership(row.current_leader_epoch)
        if (
            error == ErrorCode.NOT_LEADER_OR_FOLLOWER
            and request.replica_id == _DEBUGGER
            and isinstance(partition, Partition)
        ):
            error = ErrorCode.NONE
        if isinstance(partition, ErrorCode) or error != ErrorCode.NONE:
            return _failed(row, error)
        not_yet = ErrorCode.NONE
        if request.replica_id == _CONSUMER and not partition.knows_what_is_committed:
            not_yet = (
                ErrorCode.OFFSET_NOT_AVAILABLE
                if version >= _OFFSET_NOT_AVAILABLE_SINCE
                else ErrorCode.LEADER_NOT_AVAILABLE
            )
        try:
            if row.timestamp >= 0 or row.timestamp == MAX_TIMESTAMP:
                return _search(partition, row, _Bounds(_visible_end(partition, request), not_yet), progress)
            return _look_up(partition, row, _visible_end(partition, request), not_yet)
        except StorageError as storage_error:
            return fail(partition, row, storage_error)

    def fail(partition: Partition, row: ListOffsetsPartition, error: Exception) -> ListOffsetsPartitionResponse:
        broker.log.error("offsets could not be read", partition=str(partition.topic_partition), error=str(error))
        return _failed(row, ErrorCode.KAFKA_STORAGE_ERROR)

    def handle(request: ListOffsetsRequest, context: RequestContext) -> Answer[ListOffsetsResponse]:
        named = Counter((topic.name, row.partition_index) for topic in request.topics for row in topic.partitions)
        searches = TimestampSearches[ListOffsetsPartitionResponse](broker.replicas.turns, broker.batch_lane, broker.log)
        topics = []
        for topic in request.topics:
            rows: list[ListOffsetsPartitionResponse] = []
            for row in {row.partition_index: row for row in topic.partitions}.values():
                if named[(topic.name, row.partition_index)] > 1:
                    rows.append(_failed(row, ErrorCode.INVALID_REQUEST))
                    continue
                found = answer(topic.name, row, context.api_version, request, Progress())
                if isinstance(found, Unfinished):
                    look_up = partial(answer, topic.name, row, context.api_version, request)
                    searches.add(
                        LongRow(
                            found, look_up, partial(rows.__setitem__, len(rows)), partial(fail, found.partition, row)
                        )
                    )
                    found = _failed(row, ErrorCode.NONE)
                rows.append(found)
            topics.append(ListOffsetsTopicResponse(name=topic.name, partitions=rows))
        response = ListOffsetsResponse(throttle_time_ms=0, topics=topics)
        return searches.start(response) if searches else response

    return HandlerSpec(key=ApiKey.LIST_OFFSETS, guard=guards.list_offsets, handle=handle, cut=CUT)


def _visible_end(partition: Partition, request: ListOffsetsRequest) -> Offset:
    """Returns the exclusive end of what the client may see: for a replica the log end offset."""
    log = partition.log
    if request.replica_id >= 0:
        return log.log_end_offset
    return log.last_stable_offset if request.isolation_level == _READ_COMMITTED else log.high_watermark


def _look_up(
    partition: Partition, row: ListOffsetsPartition, end_offset: Offset, not_yet: ErrorCode
) -> ListOffsetsPartitionResponse:
    """Returns the offset if it is below `end_offset` (exclusive), or `not_yet` if a later end may change it."""
    log = partition.log
    if row.timestamp == LATEST:
        return (
            _found(row, -1, end_offset, partition.leader_epoch) if not_yet == ErrorCode.NONE else _failed(row, not_yet)
        )
    if row.timestamp in (EARLIEST, EARLIEST_LOCAL):
        # An empty log begins with what its leader will write, as in Kafka, which notes a leader's epoch at its
        # election.
        is_empty = partition.is_leader and log.log_start_offset == log.log_end_offset
        epoch = partition.leader_epoch if is_empty else log.leader_epochs.epoch_at(log.log_start_offset)
        return _found(row, -1, log.log_start_offset, epoch)
    assert row.timestamp in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD), row
    return _found(row, -1, -1, -1)


def _search(partition: Partition, row: ListOffsetsPartition, bounds: _Bounds, progress: Progress) -> RowOrSearch:
    """Returns the record for a timestamp. A longer search continues where `progress` stands.

    For the largest timestamp, an offset above 0 without a result means that the whole batch was searched without
    success. Errors: StorageError.
    """
    log = partition.log
    found: Found
    start_offset, known, largest = progress
    hidden = log.erasures.hidden(log.high_watermark)
    if known is not None and known.offset >= log.log_start_offset and not hidden.contains(known.offset):
        found = known
    elif row.timestamp == MAX_TIMESTAMP:
        is_in_vain = start_offset > 0 and largest is None and known is None
        found = None if is_in_vain else search_max_timestamp(log, start_offset, largest)
    else:
        found = search_timestamp(log, row.timestamp, start_offset)
    if isinstance(found, LongSearch | SearchOn):
        return Unfinished(partition, found)
    if found is None or found.offset >= bounds.end_offset:
        return _found(row, -1, -1, -1) if bounds.not_yet == ErrorCode.NONE else _failed(row, bounds.not_yet)
    return _found(row, found.timestamp, found.offset, found.leader_epoch)


def _found(row: ListOffsetsPartition, timestamp: int, offset: int, leader_epoch: int) -> ListOffsetsPartitionResponse:
    return ListOffsetsPartitionResponse(
        partition_index=row.partition_index,
        error_code=ErrorCode.NONE,
        timestamp=timestamp,
        offset=offset,
        leader_epoch=leader_epoch,
    )


def _failed(row: ListOffsetsPartition, error: int) -> ListOffsetsPartitionResponse:
    return ListOffsetsPartitionResponse(
        partition_index=row.partition_index, error_code=error, timestamp=-1, offset=-1, leader_epoch=-1
    )
