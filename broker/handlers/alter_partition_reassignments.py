"""AlterPartitionReassignments: v0-v1.

Behaviour: begins reassignments of partitions, or cancels them (null replicas). The response is sent when they have
begun. The new replicas catch up beside the old ones; when the whole target is in sync, the old ones are removed with
their logs. A second reassignment of a partition replaces the first. A partition may get more or fewer replicas.

Version notes: v1 can forbid a change of the replication factor (KIP-860).

Errors: CLUSTER_AUTHORIZATION_FAILED, UNKNOWN_TOPIC_OR_PARTITION, INVALID_REPLICA_ASSIGNMENT,
INVALID_REPLICATION_FACTOR, NO_REASSIGNMENT_IN_PROGRESS, NOT_CONTROLLER, REQUEST_TIMED_OUT.

KIPs: 455, 860.
"""

from __future__ import annotations

from typing import Final

from lowtide.broker.administration.committing import outcome_fields
from lowtide.broker.administration.partition_administrator import PartitionAdministrator
from lowtide.broker.authorizer.resources import Operation
from lowtide.broker.guards.guard import on_cluster
from lowtide.broker.network.routing.request_parts import Cut
from lowtide.broker.network.routing.routes import Forwarding, HandlerSpec
from lowtide.broker.request_context import RequestContext
from lowtide.protocol.api_keys import ApiKey
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
    """Returns the handler."""

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

    return HandlerSpec(
        key=ApiKey.ALTER_PARTITION_REASSIGNMENTS,
        guard=on_cluster(Operation.ALTER, refused),
        handle_later=handle,
        cut=CUT,
        forwarding=Forwarding(refused),
    )


def refused(
    request: AlterPartitionReassignmentsRequest, _version: int, refusal: Refusal
) -> AlterPartitionReassignmentsResponse:
    """Returns the answer to a request that is refused as a whole: in each row too, as in Kafka."""
    return AlterPartitionReassignmentsResponse(
        **outcome_fields(refusal),
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
    return ReassignablePartitionResponse(partition_index=number, **outcome_fields(refusal))
