"""DeleteRecords: v0-v3.

Behaviour: raises the log start offset of each partition. Checked in this order: the partition exists, its topic isn't
internal, this broker leads it, its policy allows deletes, the offset is in range; -1 stands for the high watermark. An
accepted delete is written to the log-start journal; when that is durable it becomes visible, is checked again and is
answered. At or below the log start it is a success that changes nothing. Of a partition named twice the last row
counts.

Version notes: v2 is flexible. v3 adds LeaderOnly and LeaderLogStartOffset (KIP-1343); it is in no Apache release yet
and can be switched off with a lower maximum version.

The room of the act is `broker/partitions/deletes`.

Errors: UNKNOWN_TOPIC_OR_PARTITION, INVALID_TOPIC_EXCEPTION, NOT_LEADER_OR_FOLLOWER, POLICY_VIOLATION,
OFFSET_OUT_OF_RANGE, KAFKA_STORAGE_ERROR; REQUEST_TIMED_OUT tells the low watermark as it is then.

KIPs: 107, 1343.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Final

from lowtide.broker.authorizer.authorizer import allowed_topics
from lowtide.broker.authorizer.resources import Operation
from lowtide.broker.context import BrokerContext
from lowtide.broker.network.large_requests import Bounds
from lowtide.broker.network.request_parts import Cut
from lowtide.broker.network.routes import HandlerSpec
from lowtide.broker.partitions.deletes.delayed_delete import DelayedDeleteRecords, checked_row
from lowtide.broker.partitions.deletes.delete_request import DeleteRequest, DeleteRow
from lowtide.broker.pending import Pending
from lowtide.broker.request_context import RequestContext
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.delete_records import DeleteRecordsRequest, DeleteRecordsResponse
from lowtide.protocol.types import TopicPartition

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
        offsets = {
            TopicPartition(topic.name, row.partition_index): row.offset
            for topic in request.topics
            for row in topic.partitions
        }
        allowed = None if nothing_is_forbidden else allowed_to_delete(context, {key.topic for key in offsets})
        client = context.connection
        asked = DeleteRequest(
            rows=[
                checked_row(replicas, key, offset) if allowed is None or key.topic in allowed else _denied(key)
                for key, offset in offsets.items()
            ],
            leader_only=request.leader_only,
            timeout_ms=max(request.timeout_ms, 0),
            asked_ms=broker.clock.monotonic_ms(),
            principal=client.principal,
            client_address=client.client_address,
            client_id=context.client_id,
        )
        return DelayedDeleteRecords(replicas, broker.clock, asked, broker.recent_deletes).start()

    def allowed_to_delete(context: RequestContext, topics: set[str]) -> Container[str]:
        return allowed_topics(broker.authorizer, context, Operation.DELETE, topics)

    return HandlerSpec(key=ApiKey.DELETE_RECORDS, handle=handle, bounds=BOUNDS, cut=CUT)


def _denied(key: TopicPartition) -> DeleteRow:
    return DeleteRow(key=key, error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED, done=True)
