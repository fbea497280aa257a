"""ListPartitionReassignments: v0-v0.

Behaviour: returns the reassignments in progress, of the requested partitions or of all. `replicas` includes those that
are added and those that are removed. Unknown partitions are left out. The controller answers, because other brokers may
learn of a reassignment a little later.

Errors: CLUSTER_AUTHORIZATION_FAILED, NOT_CONTROLLER, REQUEST_TIMED_OUT.

KIPs: 455.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from lowtide.broker.administration.committing import outcome_fields
from lowtide.broker.authorizer.resources import Operation
from lowtide.broker.context import BrokerContext
from lowtide.broker.guards.guard import on_cluster
from lowtide.broker.network.routing.request_parts import Cut
from lowtide.broker.network.routing.routes import Forwarding, HandlerSpec
from lowtide.broker.request_context import RequestContext
from lowtide.metadata.image import TopicImage
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
)
from lowtide.replication.refusal import Refusal

PARTITIONS_A_STEP: Final = 100
"""Some two tenths of a millisecond's work."""

CUT: Final = Cut(levels=(("topics", "topics"), ("partition_indexes", "partitions")), sequential=True)


def handler(broker: BrokerContext) -> HandlerSpec:
    """Returns the handler."""

    async def handle(
        request: ListPartitionReassignmentsRequest, _context: RequestContext
    ) -> ListPartitionReassignmentsResponse:
        topics = broker.metadata.image.topics
        asked: list[tuple[TopicImage, Iterable[int]]]
        if request.topics is None:
            asked = [(topic, range(len(topic.partitions))) for topic in topics.values()]
        else:
            asked = [(topics[each.name], each.partition_indexes) for each in request.topics if each.name in topics]
        response = ListPartitionReassignmentsResponse(topics=[])
        await broker.turns.walk(_add_moving(response, asked))
        return response

    return HandlerSpec(
        key=ApiKey.LIST_PARTITION_REASSIGNMENTS,
        guard=on_cluster(Operation.DESCRIBE, refused),
        handle_later=handle,
        cut=CUT,
        forwarding=Forwarding(refused),
    )


def refused(
    _request: ListPartitionReassignmentsRequest, _version: int, refusal: Refusal
) -> ListPartitionReassignmentsResponse:
    """Returns the answer to a request that is refused."""
    return ListPartitionReassignmentsResponse(**outcome_fields(refusal), topics=[])


def _add_moving(
    response: ListPartitionReassignmentsResponse, asked: Sequence[tuple[TopicImage, Iterable[int]]]
) -> Iterator[None]:
    """Adds the rows of partitions whose replicas are changing, in steps."""
    step = 0
    for topic, numbers in asked:
        rows = []
        for number in numbers:
            step += 1
            if step % PARTITIONS_A_STEP == 0:
                yield
            partition = topic.partitions[number] if 0 <= number < len(topic.partitions) else None
            if partition is not None and (partition.adding or partition.removing):
                rows.append(
                    OngoingPartitionReassignment(
                        partition_index=number,
                        replicas=list(partition.replicas),
                        adding_replicas=list(partition.adding),
                        removing_replicas=list(partition.removing),
                    )
                )
        if rows:
            response.topics.append(OngoingTopicReassignment(name=topic.name, partitions=rows))
