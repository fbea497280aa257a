"""AlterPartitionReassignments: v0-v1.

Behaviour: begins to give partitions other replicas, or cancels that (null replicas); answered when it has begun. The
new replicas are brought into sync beside the old ones; when the whole target is in sync the old ones go, and with them
their logs. A reassignment that is asked for while one is under way takes its place. A partition may get more replicas,
or fewer.

Version notes: v1 can forbid a change of the replication factor (KIP-860).

Errors: CLUSTER_AUTHORIZATION_FAILED, UNKNOWN_TOPIC_OR_PARTITION, INVALID_REPLICA_ASSIGNMENT,
INVALID_REPLICATION_FACTOR, NO_REASSIGNMENT_IN_PROGRESS, NOT_CONTROLLER, REQUEST_TIMED_OUT.

KIPs: 455, 860.
"""

from __future__ import annotations

from typing import Final

from lowtide.broker.administration.partition_administrator import PartitionAdministrator
from lowtide.broker.network.request_parts import Cut
from lowtide.broker.network.routes import HandlerSpec
from lowtide.broker.request_context import RequestContext
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)
from lowtide.replication.reassignments import Reassignment
from lowtide.replication.refusal import Refusal

CUT: Final = Cut(
    levels=(("topics", "responses"), ("partitions", "partitions")),
    names=("name", "partition_index"),
    changes=True,
    sequential=True,
)


def handler(administrator: PartitionAdministrator) -> HandlerSpec:
    """The handler over a broker's partitions."""

    async def handle(
        request: AlterPartitionReassignmentsRequest, _context: RequestContext
    ) -> AlterPartitionReassignmentsResponse:
        wanted = [_wish(topic.name, partition) for topic in request.topics for partition in topic.partitions]
        may_change_factor = request.allow_replication_factor_change
        outcomes = iter(await administrator.reassign(wanted, request.timeout_ms, may_change_factor=may_change_factor))
        return AlterPartitionReassignmentsResponse(
            allow_replication_factor_change=may_change_factor,
            responses=[
                ReassignableTopicResponse(
                    name=topic.name,
                    partitions=[_row(each.partition_index, next(outcomes)) for each in topic.partitions],
                )
                for topic in request.topics
            ],
        )

    return HandlerSpec(key=ApiKey.ALTER_PARTITION_REASSIGNMENTS, handle_later=handle, cut=CUT)


def refused(
    request: AlterPartitionReassignmentsRequest, _version: int, refusal: Refusal
) -> AlterPartitionReassignmentsResponse:
    """The answer to a request that is refused as a whole: in each row too, as in Kafka."""
    return AlterPartitionReassignmentsResponse(
        error_code=refusal.error_code,
        error_message=refusal.message,
        responses=[
            ReassignableTopicResponse(
                name=topic.name, partitions=[_row(each.partition_index, refusal) for each in topic.partitions]
            )
            for topic in request.topics
        ],
    )


def _wish(topic: str, partition: ReassignablePartition) -> Reassignment:
    return Reassignment(
        topic, partition.partition_index, None if partition.replicas is None else tuple(partition.replicas)
    )


def _row(number: int, refusal: Refusal | None) -> ReassignablePartitionResponse:
    if refusal is None:
        return ReassignablePartitionResponse(partition_index=number, error_code=ErrorCode.NONE)
    return ReassignablePartitionResponse(
        partition_index=number, error_code=refusal.error_code, error_message=refusal.message
    )
