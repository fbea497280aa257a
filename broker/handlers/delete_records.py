"""DeleteRecords: v0-v3.

Behaviour: raises the log start offset of each partition. Checked in this order: the partition exists, its topic isn't
internal, this broker leads it, its policy allows deletes, the offset is in range; -1 stands for the high watermark. An
accepted delete is written to the log-start journal; when that is durable it becomes visible, is checked again and is
answered. At or below the log start it is a success that changes nothing. Of a partition named twice the last row
counts.

Version notes: v2 is flexible. v3 adds LeaderOnly and LeaderLogStartOffset (KIP-1343); it is in no Apache release yet
and can be switched off with a lower maximum version.

What an accepted delete waits for is in `deletes/delayed_delete.py`. A request for one partition has a quick path
(`deletes/small_delete.py`).

Errors: UNKNOWN_TOPIC_OR_PARTITION, INVALID_TOPIC_EXCEPTION, NOT_LEADER_OR_FOLLOWER, POLICY_VIOLATION,
OFFSET_OUT_OF_RANGE, KAFKA_STORAGE_ERROR; REQUEST_TIMED_OUT tells the low watermark as it is then.

KIPs: 107, 1343.
"""

from __future__ import annotations

from typing import Final

from lowtide.broker.authorizer.authorizer import allowed_topics
from lowtide.broker.authorizer.resources import Operation
from lowtide.broker.context import BrokerContext
from lowtide.broker.handlers.deletes.delayed_delete import DelayedDeleteRecords
from lowtide.broker.network.large_requests import Bounds
from lowtide.broker.network.request_parts import Cut
from lowtide.broker.network.routes import HandlerSpec
from lowtide.broker.observation.deletes import DeleteRequest, DeleteRow
from lowtide.broker.partitions.replica_manager import ReplicaManager
from lowtide.broker.pending import Pending
from lowtide.broker.request_context import RequestContext
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.delete_records import DeleteRecordsRequest, DeleteRecordsResponse
from lowtide.protocol.types import Offset, TopicPartition
from lowtide.replication.topic_names import INTERNAL_TOPICS
from lowtide.storage.directory.log_starts import LogStartIncrement

BOUNDS: Final = Bounds(undivided_max=1_024)
"""A partition costs some ten microseconds, and as much again when its delete is durable: a thousand of them are deleted by one write."""

CUT: Final = Cut(
    levels=(("topics", "topics"), ("partitions", "partitions")), names=("name", "partition_index"), changes=True
)


def handler(broker: BrokerContext) -> HandlerSpec:
    """The handler over a broker's state."""
    replicas, nothing_is_forbidden = broker.replicas, broker.authorizer.allows_all

    def handle(
        request: DeleteRecordsRequest, context: RequestContext
    ) -> DeleteRecordsResponse | Pending[DeleteRecordsResponse]:
        wanted = {
            TopicPartition(topic.name, row.partition_index): row.offset
            for topic in request.topics
            for row in topic.partitions
        }
        rows = (
            [_checked(replicas, key, offset) for key, offset in wanted.items()]
            if nothing_is_forbidden
            else allowed_rows(wanted, context)
        )
        increments = [
            LogStartIncrement(row.partition.log, row.offset)
            for row in rows
            if row.partition is not None and row.offset > row.partition.log.log_start_pending
        ]
        asked = DeleteRequest(
            rows=rows,
            leader_only=request.leader_only,
            timeout_ms=max(request.timeout_ms, 0),
            asked_ms=broker.clock.monotonic_ms(),
            principal=context.connection.principal,
            client_address=context.connection.client_address,
            client_id=context.client_id,
        )
        delayed = DelayedDeleteRecords(replicas, broker.clock, asked, broker.recent_deletes)
        if increments:
            replicas.request_log_starts(increments)
        return delayed.start()

    def allowed_rows(wanted: dict[TopicPartition, Offset], context: RequestContext) -> list[DeleteRow]:
        allowed = allowed_topics(broker.authorizer, context, Operation.DELETE, {key.topic for key in wanted})
        return [
            _checked(replicas, key, offset) if key.topic in allowed else _denied(key) for key, offset in wanted.items()
        ]

    return HandlerSpec(key=ApiKey.DELETE_RECORDS, handle=handle, bounds=BOUNDS, cut=CUT)


def _denied(key: TopicPartition) -> DeleteRow:
    return DeleteRow(key=key, error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED, done=True)


def _checked(replicas: ReplicaManager, key: TopicPartition, offset: Offset) -> DeleteRow:
    partition = replicas.find(*key)
    if isinstance(partition, ErrorCode):
        return DeleteRow(key=key, error_code=partition, done=True)
    if key.topic in INTERNAL_TOPICS:
        return DeleteRow(key=key, error_code=ErrorCode.INVALID_TOPIC_EXCEPTION, done=True)
    target = partition.check_delete(offset)
    if isinstance(target, ErrorCode):
        return DeleteRow(key=key, error_code=target, done=True)
    return DeleteRow(
        key=key,
        partition=partition,
        leader_epoch=partition.leader_epoch,
        offset=target,
        old_log_start_offset=partition.log.log_start_offset,
    )
