"""ListPartitionReassignments: v0-v0.

Behaviour: the partitions that are being given other replicas, of those asked for or of all. `replicas` has those that come and those that
go too. What doesn't exist isn't told. The controller is asked, for others may know of a reassignment a little later.

Errors: CLUSTER_AUTHORIZATION_FAILED, NOT_CONTROLLER, REQUEST_TIMED_OUT.

KIPs: 455.
"""

from __future__ import annotations

from collections.abc import Iterable

from lowtide.broker.authorizer import CLUSTER, Operation
from lowtide.broker.context import BrokerContext
from lowtide.broker.network.connection import RequestContext
from lowtide.broker.network.dispatcher import HandlerSpec
from lowtide.metadata.image import TopicImage
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
)
from lowtide.replication.refusal import Refusal


def handler(broker: BrokerContext) -> HandlerSpec:
    """The handler over a broker's image."""

    async def handle(request: ListPartitionReassignmentsRequest, context: RequestContext) -> ListPartitionReassignmentsResponse:
        if not broker.authorizer.authorize(context.principal, Operation.DESCRIBE, CLUSTER):
            return refused(request, context.api_version, Refusal(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "Cluster authorization failed."))
        topics = broker.metadata.image.topics
        rows: list[OngoingTopicReassignment | None]
        if request.topics is None:
            rows = [_moving(topic, range(len(topic.partitions))) for topic in topics.values()]
        else:
            rows = [_moving(topics[each.name], each.partition_indexes) for each in request.topics if each.name in topics]
        return ListPartitionReassignmentsResponse(topics=[row for row in rows if row is not None])

    return HandlerSpec(key=ApiKey.LIST_PARTITION_REASSIGNMENTS, handle_later=handle)


def refused(_request: ListPartitionReassignmentsRequest, _version: int, refusal: Refusal) -> ListPartitionReassignmentsResponse:
    """The answer to a request that is refused."""
    return ListPartitionReassignmentsResponse(error_code=refusal.error_code, error_message=refusal.message, topics=[])


def _moving(topic: TopicImage, numbers: Iterable[int]) -> OngoingTopicReassignment | None:
    rows = [
        OngoingPartitionReassignment(
            partition_index=number,
            replicas=list(partition.replicas),
            adding_replicas=list(partition.adding),
            removing_replicas=list(partition.removing),
        )
        for number in numbers
        if 0 <= number < len(topic.partitions)
        for partition in [topic.partitions[number]]
        if partition.adding or partition.removing
    ]
    return OngoingTopicReassignment(name=topic.name, partitions=rows) if rows else None
